"""Machines, as clients with types in Go write them: with zeros, nulls and empty objects for all that nobody set."""

import json
import pathlib
import unittest

from kubernetes import client
from space import Space

SENT = pathlib.Path(__file__).parents[3] / "crates/api/testdata/typed-clients.json"


class Machines(Space):
    def sent(self, kind):
        return next(entry["object"] for entry in json.loads(SENT.read_text()) if entry["object"]["kind"] == kind)

    def test_what_typed_clients_send(self):
        custom = client.CustomObjectsApi()
        for kind, plural in [("VirtualMachine", "virtualmachines"), ("VirtualMachineInstance", "virtualmachineinstances")]:
            at = ("kubevirt.io", "v1", self.space, plural)
            body = self.sent(kind)
            body["metadata"].update(namespace=self.space, annotations={"kubevirt.io/test": "test"})
            made = custom.create_namespaced_custom_object(*at, body)

            def replaced(at=at, zeros=body["status"]):
                found = custom.get_namespaced_custom_object(*at, "typed")
                found["metadata"]["labels"] = {"changed": "yes"}
                found["status"] = zeros | found.get("status", {})
                try:
                    return custom.replace_namespaced_custom_object(*at, "typed", found)
                except client.ApiException as error:
                    if error.status != 409:
                        raise

            self.until(f"the {kind} is written back", replaced)
        self.assertEqual(made["status"]["phase"], "Pending")

        def annotated():
            pods = self.core.list_namespaced_pod(self.space, label_selector="kubevirt.io=virt-launcher").items
            return [pod.metadata.annotations.get("kubevirt.io/test") for pod in pods]

        self.assertEqual(self.until("the launcher pod is made", annotated), ["test"])
        custom.patch_namespaced_custom_object(*at, "typed", {"status": {"activePods": {"mine": "node"}}})
        self.assertNotIn("mine", custom.get_namespaced_custom_object(*at, "typed")["status"].get("activePods", {}))
        for plural in ["virtualmachineinstances", "virtualmachines"]:
            custom.delete_namespaced_custom_object("kubevirt.io", "v1", self.space, plural, "typed")


if __name__ == "__main__":
    unittest.main()
