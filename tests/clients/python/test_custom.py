"""CustomObjectsApi and the dynamic client: kinds that the client knows only by the server's own documents."""

import unittest
import uuid

from kubernetes import client, dynamic, utils
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError, ResourceNotFoundError
from space import Space

SCHEMA = {"type": "object", "properties": {
    "spec": {"type": "object", "required": ["size"], "x-kubernetes-validations": [
        {"rule": "!has(oldSelf.colour) || self.colour == oldSelf.colour", "message": "colour is for ever"}],
        "properties": {"size": {"type": "integer", "minimum": 1}, "colour": {"type": "string", "default": "red"}, "replicas": {"type": "integer"}}},
    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}


class Custom(Space):
    def setUp(self):
        super().setUp()
        self.group = f"g{uuid.uuid4().hex[:8]}.example.com"
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA},
                   "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}}}
        extensions = client.ApiextensionsV1Api()
        extensions.create_custom_resource_definition({
            "metadata": {"name": f"widgets.{self.group}"},
            "spec": {"group": self.group, "scope": "Namespaced", "versions": [version],
                     "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]}}})
        self.addCleanup(extensions.delete_custom_resource_definition, f"widgets.{self.group}")

        def established():
            found = extensions.read_custom_resource_definition(f"widgets.{self.group}").status
            return any(c.type == "Established" and c.status == "True" for c in found.conditions or [])

        self.until("the definition is established", established)

    def widget(self, name, **spec):
        return {"apiVersion": f"{self.group}/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}

    def test_custom_objects(self):
        custom = client.CustomObjectsApi()
        at = (self.group, "v1", self.space, "widgets")
        made = custom.create_namespaced_custom_object(*at, self.widget("w", size=1, more="pruned"))
        self.assertEqual(made["spec"], {"size": 1, "colour": "red"})
        error = self.refused(422, custom.create_namespaced_custom_object, *at, self.widget("x", size=0))
        self.assertIn("spec.size in body should be greater than or equal to 1", error.body)
        error = self.refused(422, custom.patch_namespaced_custom_object, *at, "w", {"spec": {"colour": "blue"}})
        self.assertIn("colour is for ever", error.body)
        status = custom.patch_namespaced_custom_object_status(*at, "w", {"status": {"phase": "Done"}, "spec": {"size": 9}})
        self.assertEqual((status["status"], status["spec"]["size"], status["metadata"]["generation"]), ({"phase": "Done"}, 1, 1))
        scale = custom.patch_namespaced_custom_object_scale(*at, "w", {"spec": {"replicas": 4}})
        self.assertEqual(scale["spec"]["replicas"], 4)
        listed = custom.list_namespaced_custom_object(*at)
        self.assertEqual((listed["kind"], len(listed["items"])), ("WidgetList", 1))
        custom.delete_namespaced_custom_object(*at, "w")
        self.refused(404, custom.get_namespaced_custom_object, *at, "w")

    def test_the_dynamic_client(self):
        found = dynamic.DynamicClient(client.ApiClient())
        self.assertEqual(found.version["kubernetes"]["major"], "1")
        widgets = found.resources.get(api_version=f"{self.group}/v1", kind="Widget")
        self.assertEqual((widgets.name, widgets.namespaced, widgets.short_names), ("widgets", True, ["wd"]))
        made = widgets.create(body=self.widget("w", size=2), namespace=self.space)
        self.assertEqual(made.spec.colour, "red")
        made.spec.size = 3
        replaced = widgets.replace(body=made.to_dict(), namespace=self.space)
        self.assertEqual(replaced.metadata.generation, 2)
        with self.assertRaises(ConflictError):
            widgets.replace(body=made.to_dict(), namespace=self.space)
        patched = widgets.patch(body={"metadata": {"labels": {"a": "b"}}}, name="w", namespace=self.space,
                                content_type="application/merge-patch+json")
        self.assertEqual(patched.metadata.labels.a, "b")
        applied = widgets.server_side_apply(body=self.widget("w", size=4), name="w", namespace=self.space,
                                            field_manager="suite", force_conflicts=True)
        self.assertEqual(applied.spec.size, 4)
        self.assertEqual([w.metadata.name for w in widgets.get(namespace=self.space, label_selector="a=b").items], ["w"])
        events = []
        for event in widgets.watch(namespace=self.space, timeout=2):
            events.append((event["type"], event["object"].metadata.name))
            if event["type"] == "ADDED":
                widgets.delete(name="w", namespace=self.space)
            if event["type"] == "DELETED":
                break
        self.assertEqual(events, [("ADDED", "w"), ("DELETED", "w")])
        with self.assertRaises(NotFoundError):
            widgets.get(name="w", namespace=self.space)
        with self.assertRaises(ResourceNotFoundError):
            found.resources.get(api_version=f"{self.group}/v1", kind="Gadget")

    def test_the_dynamic_client_reads_every_kind(self):
        found = dynamic.DynamicClient(client.ApiClient())
        kinds = {resource.kind for resource in found.resources.search() if "list" in (resource.verbs or [])}
        self.assertLessEqual({"Pod", "Deployment", "Widget", "CustomResourceDefinition", "Role", "Lease"}, kinds)
        for resource in found.resources.search():
            # Other tests' definitions come and go while this one reads.
            if "list" in (resource.verbs or []) and not resource.kind.endswith("List") and "example.com" not in resource.group:
                listed = resource.get()
                # What is computed for each answer and never stored has no version, on any server.
                stored = resource.kind != "ComponentStatus"
                self.assertEqual(bool(listed.metadata.resourceVersion), stored, resource.kind)

    def test_what_a_file_of_many_kinds_says_is_made(self):
        objects = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "from-file"}, "data": {"a": "1"}},
                   {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "from-file"},
                    "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": {
                        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}]
        for each in objects:
            utils.create_from_dict(client.ApiClient(), each, namespace=self.space)
        self.assertEqual(self.core.read_namespaced_config_map("from-file", self.space).data, {"a": "1"})
        with self.assertRaises(utils.FailToCreateError):
            utils.create_from_dict(client.ApiClient(), objects[0], namespace=self.space)


if __name__ == "__main__":
    unittest.main()
