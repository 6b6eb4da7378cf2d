"""Every kind of patch: JSON, merge, strategic merge and server-side apply with its owners and conflicts."""

import json
import unittest

from kubernetes import client
from space import Space


class Patching(Space):
    def patch(self, kind, path, body, method="PATCH", **query):
        """A patch of a stated type; gives the object."""
        api = client.ApiClient()
        headers = {"Content-Type": f"application/{kind}", "Accept": "application/json"}
        answer = api.call_api(path, method, query_params=list(query.items()), header_params=headers, body=body,
                              response_type="object", auth_settings=["BearerToken"], _return_http_data_only=True)
        return answer

    def setUp(self):
        super().setUp()
        self.map = f"/api/v1/namespaces/{self.space}/configmaps/m"
        self.deployment = f"/apis/apps/v1/namespaces/{self.space}/deployments/d"

    def apply(self, body, manager, path=None, **query):
        return self.patch("apply-patch+yaml", path or self.map, body, fieldManager=manager, **query)

    def test_json_patch(self):
        self.core.create_namespaced_config_map(self.space, {"metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}})
        operations = [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "replace", "path": "/data/a", "value": "9"},
                      {"op": "remove", "path": "/data/b"}, {"op": "copy", "from": "/data/a", "path": "/data/c"},
                      {"op": "move", "from": "/data/c", "path": "/data/d"}]
        self.assertEqual(self.patch("json-patch+json", self.map, operations)["data"], {"a": "9", "d": "9"})
        wrong = [{"op": "test", "path": "/data/a", "value": "1"}]
        error = self.refused(422, self.patch, "json-patch+json", self.map, wrong)
        self.assertIn("the server rejected our request due to an error in our request", error.body)
        # The Python client sends a list as a JSON patch by itself.
        patched = self.core.patch_namespaced_config_map("m", self.space, [{"op": "add", "path": "/data/e", "value": "5"}])
        self.assertEqual(patched.data["e"], "5")

    def test_merge_patch(self):
        self.core.create_namespaced_config_map(self.space, {"metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}})
        self.assertEqual(self.patch("merge-patch+json", self.map, {"data": {"a": None, "c": "3"}})["data"], {"b": "2", "c": "3"})
        stale = {"metadata": {"resourceVersion": "1"}, "data": {"a": "1"}}
        self.refused(409, self.patch, "merge-patch+json", self.map, stale)
        self.refused(415, self.patch, "strange-patch+json", self.map, {})

    def test_strategic_merge_patch(self):
        container = {"name": "c", "image": "i", "ports": [{"containerPort": 1}], "env": [{"name": "A", "value": "1"}]}
        client.AppsV1Api().create_namespaced_deployment(self.space, {"metadata": {"name": "d"}, "spec": {
            "replicas": 0, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}}})

        def change(container, **more):
            body = {"spec": {"template": {"spec": {"containers": [{"name": "c", **container}], **more}}}}
            return self.patch("strategic-merge-patch+json", self.deployment, body)["spec"]["template"]["spec"]

        spec = change({"env": [{"name": "B", "value": "2"}]})
        self.assertEqual([e["name"] for e in spec["containers"][0]["env"]], ["B", "A"])
        spec = change({"env": [{"name": "A", "$patch": "delete"}]})
        self.assertEqual([e["name"] for e in spec["containers"][0]["env"]], ["B"])
        spec = change({"env": [{"$patch": "replace"}, {"name": "Z", "value": "0"}]})
        self.assertEqual([e["name"] for e in spec["containers"][0]["env"]], ["Z"])
        spec = change({"image": "j"}, **{"volumes": [{"name": "v", "emptyDir": {}}]})
        self.assertEqual((spec["containers"][0]["image"], spec["volumes"][0]["name"]), ("j", "v"))

    def test_apply_owns_and_conflicts(self):
        def body(**data):
            return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data}

        made = self.apply(body(a="1", b="1"), "one")
        self.assertEqual(made["metadata"]["managedFields"][0]["operation"], "Apply")
        error = self.refused(409, self.apply, body(a="2"), "two")
        status = json.loads(error.body)
        self.assertEqual(status["details"]["causes"][0]["reason"], "FieldManagerConflict")
        self.assertEqual(status["details"]["causes"][0]["field"], ".data.a")
        self.assertIn('conflict with "one"', status["message"])
        self.assertEqual(self.apply(body(a="2"), "two", force="true")["data"], {"a": "2", "b": "1"})
        self.assertEqual(self.apply(body(b="1", a="2"), "one")["data"], {"a": "2", "b": "1"})
        # What nobody applies any more goes; what the other applies stays.
        self.assertEqual(self.apply(body(), "one")["data"], {"a": "2"})
        before = self.apply(body(a="2"), "two")["metadata"]["resourceVersion"]
        self.assertEqual(self.apply(body(a="2"), "two")["metadata"]["resourceVersion"], before)
        self.refused(422, self.patch, "apply-patch+yaml", self.map, body(a="1"))
        error = self.refused(400, self.apply, {**body(), "metadata": {"name": "m", "managedFields": made["metadata"]["managedFields"]}}, "one")
        self.assertIn("metadata.managedFields must be nil", error.body)

    def test_apply_merges_lists_by_their_keys(self):
        def body(*containers):
            return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
                "replicas": 0, "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": list(containers)}}}}

        self.apply(body({"name": "c", "image": "i"}), "one", self.deployment)
        both = {"spec": {"template": {"spec": {"containers": [{"name": "d", "image": "j"}]}}}}
        both.update(apiVersion="apps/v1", kind="Deployment", metadata={"name": "d"})
        made = self.apply(both, "two", self.deployment)
        self.assertEqual([c["name"] for c in made["spec"]["template"]["spec"]["containers"]], ["c", "d"])
        made = self.apply(body({"name": "c", "image": "k"}), "one", self.deployment)
        self.assertEqual([c["image"] for c in made["spec"]["template"]["spec"]["containers"]], ["k", "j"])


if __name__ == "__main__":
    unittest.main()
