"""Helm, out of the library that the package helm-sdkpy on PyPI carries.

    helm.py LIBRARY KUBECONFIG NAMESPACE lint CHART
    helm.py LIBRARY KUBECONFIG NAMESPACE install|upgrade RELEASE CHART VALUES
    helm.py LIBRARY KUBECONFIG NAMESPACE uninstall|status RELEASE

VALUES is JSON. Helm's answer is printed as JSON; a failure is printed as Helm words it, with exit code 1.
"""

import ctypes
import json
import sys

WAIT_SECONDS = 300
APPLY = json.dumps(
    {"create_namespace": True, "wait": True, "timeout_seconds": WAIT_SECONDS, "server_side_apply": "true"}
)

library, kubeconfig, namespace, action, *words = sys.argv[1:]
helm = ctypes.CDLL(library)
helm.helm_sdkpy_last_error.restype = ctypes.c_char_p


def text(value):
    return ctypes.c_char_p(value.encode())


def call(function, *arguments):
    if getattr(helm, f"helm_sdkpy_{function}")(*arguments) != 0:
        sys.exit(helm.helm_sdkpy_last_error().decode())


arguments = [text(word) for word in words]
if action in ("install", "upgrade"):
    arguments += [text(""), text(APPLY)]
if action == "uninstall":
    arguments += [ctypes.c_int(1), ctypes.c_int(WAIT_SECONDS)]
handle, answer = ctypes.c_ulonglong(), ctypes.c_char_p()
call("config_create", text(namespace), text(kubeconfig), text(""), text("{}"), ctypes.byref(handle))
call(action, handle, *arguments, ctypes.byref(answer))
print((answer.value or b"").decode())
