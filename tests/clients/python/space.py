"""What every test of this suite starts from: a client, and a namespace of its own that goes when the test ends."""

import time
import unittest
import uuid

from kubernetes import client, config

# Holds a shell and busybox, and is on every node.
IMAGE = "ferrovirt.local/component:v0.1.0"
# Has nothing to do, and ends when it is told to.
IDLE = "trap 'exit 0' TERM; sleep 100000 & wait"

config.load_kube_config()


class Space(unittest.TestCase):
    """A test case with a namespace for each test."""

    def setUp(self):
        self.core = client.CoreV1Api()
        self.space = f"python-{uuid.uuid4().hex[:8]}"
        self.core.create_namespace({"metadata": {"name": self.space}})
        self.addCleanup(self.core.delete_namespace, self.space)

    def until(self, what, look, limit=60):
        """Looks until it finds something true, and returns it."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            time.sleep(0.1)
        return self.fail(f"not within {limit} s: {what}")

    def refused(self, status, call, *arguments, **named):
        """Calls what the server is to refuse, and returns the exception."""
        with self.assertRaises(client.ApiException) as caught:
            call(*arguments, **named)
        self.assertEqual(caught.exception.status, status, caught.exception.body)
        return caught.exception

    def running(self, name, script=IDLE, **spec):
        """A pod that runs a script, once it is ready."""
        self.core.create_namespaced_pod(self.space, pod(name, script, **spec))

        def ready():
            conditions = self.core.read_namespaced_pod(name, self.space).status.conditions or []
            return any(c.type == "Ready" and c.status == "True" for c in conditions)

        self.until(f"pod {name} is ready", ready)


def template(labels, script=IDLE, **spec):
    """A template of pods."""
    container = {"name": "main", "image": IMAGE, "command": ["sh", "-c", script]}
    # Root, which the image's own user is not.
    own = {"securityContext": {"runAsUser": 0}, "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"metadata": {"labels": labels}, "spec": {**own, **spec}}


def pod(name, script=IDLE, **spec):
    """A pod with one container called main."""
    made = template({"app": name}, script, **spec)
    made["metadata"]["name"] = name
    return made
