"""Writes the files that a medium of Windows starts with where Windows' own media have them: in a UDF file system alone.

    medium.py FILE
"""

import io
import sys

import pycdlib

README = b"This disc has a file system of the kind UDF.\n"
FILES = {"/setup.exe": b"content\n", "/boot/etfsboot.com": bytes(4096)}
for name in ("efisys.bin", "efisys_noprompt.bin", "cdboot.efi", "cdboot_noprompt.efi"):
    FILES[f"/efi/microsoft/boot/{name}"] = f"is-{name}\n".encode()

medium = pycdlib.PyCdlib()
medium.new(interchange_level=3, udf="2.60")
# All that who reads no UDF sees.
medium.add_fp(io.BytesIO(README), len(README), "/README.TXT;1")
for directory in ("/boot", "/efi", "/efi/microsoft", "/efi/microsoft/boot"):
    medium.add_directory(udf_path=directory)
for path, content in FILES.items():
    medium.add_fp(io.BytesIO(content), len(content), udf_path=path)
medium.write(sys.argv[1])
medium.close()
