"""CoreV1Api: objects of every day, their selectors, their lists in pieces, conflicts and preconditions."""

import unittest

from kubernetes import client
from space import Space, pod


class Core(Space):
    def test_a_config_map_lives(self):
        made = self.core.create_namespaced_config_map(self.space, {"metadata": {"name": "m"}, "data": {"a": "1"}})
        self.assertTrue(made.metadata.uid and made.metadata.resource_version)
        self.assertIsNotNone(made.metadata.creation_timestamp.tzinfo)
        made.data["b"] = "2"
        replaced = self.core.replace_namespaced_config_map("m", self.space, made)
        self.assertEqual(replaced.data, {"a": "1", "b": "2"})
        stale = self.refused(409, self.core.replace_namespaced_config_map, "m", self.space, made)
        self.assertIn("the object has been modified; please apply your changes to the latest version", stale.body)
        self.refused(409, self.core.create_namespaced_config_map, self.space, {"metadata": {"name": "m"}})
        status = self.core.delete_namespaced_config_map("m", self.space)
        self.assertEqual((status.status, status.details.name, status.details.kind), ("Success", "m", "configmaps"))
        gone = self.refused(404, self.core.read_namespaced_config_map, "m", self.space)
        self.assertIn('configmaps \\"m\\" not found', gone.body)

    def test_preconditions_guard_a_deletion(self):
        made = self.core.create_namespaced_config_map(self.space, {"metadata": {"name": "m"}})
        options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
        self.refused(409, self.core.delete_namespaced_config_map, "m", self.space, body=options)
        options.preconditions = client.V1Preconditions(uid=made.metadata.uid, resource_version=made.metadata.resource_version)
        self.core.delete_namespaced_config_map("m", self.space, body=options)

    def test_a_dry_run_stores_nothing(self):
        made = self.core.create_namespaced_config_map(self.space, {"metadata": {"name": "m"}}, dry_run="All")
        self.assertTrue(made.metadata.uid)
        self.refused(404, self.core.read_namespaced_config_map, "m", self.space)

    def test_lists_come_in_pieces(self):
        for number in range(7):
            labels = {"parity": "even" if number % 2 == 0 else "odd"}
            self.core.create_namespaced_config_map(self.space, {"metadata": {"name": f"m{number}", "labels": labels}})
        first = self.core.list_namespaced_config_map(self.space, limit=3, label_selector="parity")
        self.assertEqual((len(first.items), first.metadata.remaining_item_count), (3, None))
        first = self.core.list_namespaced_config_map(self.space, limit=3)
        self.assertEqual((len(first.items), first.metadata.remaining_item_count), (3, 5))
        names, token = [], None
        while True:
            page = self.core.list_namespaced_config_map(self.space, limit=3, _continue=token)
            names += [item.metadata.name for item in page.items]
            # A write between two pieces is in none of them.
            self.core.create_namespaced_config_map(self.space, {"metadata": {"generateName": "z"}})
            token = page.metadata._continue
            if not token:
                break
        self.assertEqual(names, ["kube-root-ca.crt"] + [f"m{n}" for n in range(7)])
        even = self.core.list_namespaced_config_map(self.space, label_selector="parity in (even),parity!=odd")
        self.assertEqual(len(even.items), 4)
        named = self.core.list_namespaced_config_map(self.space, field_selector="metadata.name=m3")
        self.assertEqual([item.metadata.name for item in named.items], ["m3"])
        exact = self.core.list_namespaced_config_map(
            self.space, resource_version=named.metadata.resource_version, resource_version_match="Exact"
        )
        self.assertEqual(exact.metadata.resource_version, named.metadata.resource_version)
        self.refused(422, self.core.list_namespaced_config_map, self.space, resource_version_match="Exact")

    def test_a_collection_goes_by_its_label(self):
        for name in ("a", "b", "c"):
            labels = {"go": str(name != "c").lower()}
            self.core.create_namespaced_config_map(self.space, {"metadata": {"name": name, "labels": labels}})
        self.core.delete_collection_namespaced_config_map(self.space, label_selector="go=true")
        left = self.core.list_namespaced_config_map(self.space, label_selector="go")
        self.assertEqual([item.metadata.name for item in left.items], ["c"])

    def test_a_bad_pod_is_refused_with_causes(self):
        bad = pod("p")
        bad["spec"]["containers"][0]["name"] = "Not A Name"
        bad["spec"]["restartPolicy"] = "Sometimes"
        error = self.refused(422, self.core.create_namespaced_pod, self.space, bad)
        self.assertIn("spec.containers[0].name", error.body)
        self.assertIn("spec.restartPolicy", error.body)
        self.assertIn('"reason":"Invalid"', error.body)

    def test_a_pod_runs_is_evicted_and_its_log_is_read(self):
        self.running("p", "echo one; echo two; trap 'exit 0' TERM; sleep 1000 & wait")
        lines = self.until("both lines", lambda: [*self.core.read_namespaced_pod_log("p", self.space).split()][1:] and
                           self.core.read_namespaced_pod_log("p", self.space))
        self.assertEqual(lines, "one\ntwo\n")
        self.assertEqual(self.core.read_namespaced_pod_log("p", self.space, tail_lines=1), "two\n")
        stamped = self.core.read_namespaced_pod_log("p", self.space, timestamps=True, limit_bytes=30)
        self.assertRegex(stamped, r"^\d{4}-\d\d-\d\dT")
        eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name="p", namespace=self.space))
        answer = self.core.create_namespaced_pod_eviction("p", self.space, eviction, _preload_content=False)
        self.assertEqual(answer.status, 201)
        def gone():
            return not self.core.list_namespaced_pod(self.space, field_selector="metadata.name=p").items

        self.until("the pod is gone", gone)

    def test_secrets_and_services_get_their_defaults(self):
        secret = self.core.create_namespaced_secret(self.space, {"metadata": {"name": "s"}, "stringData": {"k": "v"}})
        self.assertEqual((secret.data, secret.type, secret.string_data), ({"k": "dg=="}, "Opaque", None))
        ports = [{"port": 80, "targetPort": "web"}]
        service = self.core.create_namespaced_service(self.space, {"metadata": {"name": "s"}, "spec": {"ports": ports}})
        self.assertTrue(service.spec.cluster_ip.count(".") == 3 and service.spec.type == "ClusterIP")
        self.assertEqual((service.spec.ports[0].protocol, service.spec.ports[0].target_port), ("TCP", "web"))

    def test_events_are_recorded_by_both_their_apis(self):
        stamp = "2026-01-02T03:04:05.000006Z"
        regarding = {"kind": "Pod", "name": "p", "namespace": self.space, "apiVersion": "v1"}
        body = {"metadata": {"name": "e"}, "regarding": regarding, "reason": "Tested", "note": "a note", "type": "Normal",
                "action": "Testing", "reportingController": "example.com/suite", "reportingInstance": "x", "eventTime": stamp}
        client.EventsV1Api().create_namespaced_event(self.space, body)
        event = self.core.read_namespaced_event("e", self.space)
        self.assertEqual((event.message, event.involved_object.name, event.reason), ("a note", "p", "Tested"))
        self.assertEqual(event.event_time.microsecond, 6)
        selector = "involvedObject.name=p,reason=Tested"
        self.assertEqual(len(self.core.list_namespaced_event(self.space, field_selector=selector).items), 1)

    def test_versions_and_nodes_are_told(self):
        version = client.VersionApi().get_code()
        self.assertEqual((version.major, version.minor.rstrip("+")), ("1", "33"))
        groups = {group.name for group in client.ApisApi().get_api_versions().groups}
        self.assertLessEqual({"apps", "batch", "rbac.authorization.k8s.io", "apiextensions.k8s.io"}, groups)
        node = self.core.list_node().items[0]
        self.assertTrue(node.status.node_info.kubelet_version.startswith("v1.33"))
        self.assertIn("cpu", node.status.allocatable)


if __name__ == "__main__":
    unittest.main()
