"""stream.stream and stream.portforward: commands in a container, their ends, and connections to its ports."""

import contextlib
import unittest

import yaml
from kubernetes.stream import portforward, stream
from kubernetes.stream.ws_client import ERROR_CHANNEL
from space import Space


class Streams(Space):
    def exec(self, *command, **options):
        return stream(self.core.connect_get_namespaced_pod_exec, "p", self.space, command=list(command),
                      **{"stdin": False, "stdout": True, "stderr": True, "tty": False, **options})

    def test_commands_answer(self):
        self.running("p")
        self.assertEqual(self.exec("sh", "-c", "echo out; echo err >&2").split(), ["out", "err"])
        session = self.exec("sh", "-c", "read line; echo got $line; echo oops >&2; exit 3", stdin=True, _preload_content=False)
        session.write_stdin("a line\n")
        session.run_forever(timeout=30)
        self.assertEqual((session.read_stdout(), session.read_stderr()), ("got a line\n", "oops\n"))
        self.assertEqual(session.returncode, 3)

    def test_the_error_channel_tells_why(self):
        self.running("p")
        session = self.exec("no-such-program", _preload_content=False)
        session.run_forever(timeout=30)
        said = yaml.safe_load(session.read_channel(ERROR_CHANNEL))
        self.assertEqual(said["status"], "Failure")
        self.assertIn("no-such-program", said["message"])
        self.refused(0, stream, self.core.connect_get_namespaced_pod_exec, "nobody", self.space, command=["true"], stdout=True)

    def test_a_terminal_has_a_size_and_one_output(self):
        self.running("p")
        session = self.exec("sh", "-c", "stty size; echo err >&2", tty=True, stdin=True, _preload_content=False)
        session.run_forever(timeout=30)
        self.assertIn("err", session.read_stdout())
        self.assertEqual(session.read_stderr(), "")

    def test_much_output_comes_whole(self):
        self.running("p")
        session = self.exec("sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x", _preload_content=False)
        session.run_forever(timeout=60)
        self.assertEqual(len(session.read_stdout()), 3_000_000)

    def test_ports_are_forwarded(self):
        self.running("p", "mkdir /tmp/w; echo hello > /tmp/w/index.html; busybox httpd -f -p 8080 -h /tmp/w & trap 'exit 0' TERM; wait")

        def fetch():
            forwarded = portforward(self.core.connect_get_namespaced_pod_portforward, "p", self.space, ports="8080")
            connection = forwarded.socket(8080)
            connection.setblocking(True)
            answer = b""
            # Until the server listens, the client closes the socket as soon as it hears of the refusal.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                while piece := connection.recv(4096):
                    answer += piece
            return forwarded.error(8080) is None and answer

        self.assertTrue(self.until("the server in the pod answers", fetch).endswith(b"hello\n"))
        forwarded = portforward(self.core.connect_get_namespaced_pod_portforward, "p", self.space, ports="9")
        # The client closes the socket as soon as it hears of the refusal, which may be before anything was sent.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            forwarded.socket(9).sendall(b"x")
        self.until("it says that nobody listens", lambda: forwarded.error(9))


if __name__ == "__main__":
    unittest.main()
