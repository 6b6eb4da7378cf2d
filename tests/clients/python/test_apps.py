"""AppsV1Api and PolicyV1Api: Deployments, StatefulSets, DaemonSets, scale, and disruption budgets."""

import unittest

from kubernetes import client
from space import IDLE, Space, template


def workload(name, replicas, **spec):
    return {"metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template({"app": name}), **spec}}


class Apps(Space):
    def setUp(self):
        super().setUp()
        self.apps = client.AppsV1Api()

    def pods(self, name):
        return [p.metadata.name for p in self.core.list_namespaced_pod(self.space, label_selector=f"app={name}").items]

    def test_a_deployment_rolls_and_scales(self):
        self.apps.create_namespaced_deployment(self.space, workload("d", 2))
        self.until("two are ready", lambda: self.apps.read_namespaced_deployment_status("d", self.space).status.ready_replicas == 2)
        self.assertEqual(self.apps.read_namespaced_deployment_scale("d", self.space).spec.replicas, 2)
        scaled = self.apps.patch_namespaced_deployment_scale("d", self.space, {"spec": {"replicas": 1}})
        self.assertEqual(scaled.spec.replicas, 1)
        self.until("one is left", lambda: self.apps.read_namespaced_deployment("d", self.space).status.replicas == 1)
        change = {"spec": {"template": {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}]}}}}
        patched = self.apps.patch_namespaced_deployment("d", self.space, change)
        self.assertEqual(patched.spec.template.spec.containers[0].command, ["sh", "-c", IDLE])
        self.until("the new revision is all there is", lambda: (
            (found := self.apps.read_namespaced_deployment("d", self.space)).status.observed_generation == found.metadata.generation
            and found.status.updated_replicas == found.status.replicas == found.status.available_replicas == 1))
        sets = self.apps.list_namespaced_replica_set(self.space, label_selector="app=d").items
        revisions = sorted(s.metadata.annotations["deployment.kubernetes.io/revision"] for s in sets)
        self.assertEqual(revisions, ["1", "2"])
        self.apps.delete_namespaced_deployment("d", self.space, propagation_policy="Foreground")
        self.until("all of it is gone", lambda: not self.pods("d") and not self.apps.list_namespaced_replica_set(self.space).items)

    def test_a_stateful_set_counts(self):
        self.apps.create_namespaced_stateful_set(self.space, workload("s", 2, serviceName="s", ordinals={"start": 5}))
        self.until("both are ready", lambda: self.apps.read_namespaced_stateful_set("s", self.space).status.ready_replicas == 2)
        self.assertEqual(self.pods("s"), ["s-5", "s-6"])
        revision = self.apps.read_namespaced_stateful_set("s", self.space).status.current_revision
        self.assertIn(revision, [r.metadata.name for r in self.apps.list_namespaced_controller_revision(self.space).items])
        pod = self.core.read_namespaced_pod("s-6", self.space)
        self.assertEqual((pod.spec.hostname, pod.spec.subdomain), ("s-6", "s"))
        self.assertEqual(pod.metadata.labels["apps.kubernetes.io/pod-index"], "6")
        error = self.refused(422, self.apps.patch_namespaced_stateful_set, "s", self.space, {"spec": {"serviceName": "other"}})
        self.assertIn("updates to statefulset spec for fields other than", error.body)

    def test_a_daemon_set_is_on_every_node(self):
        made = workload("d", 1)
        del made["spec"]["replicas"]
        self.apps.create_namespaced_daemon_set(self.space, made)
        nodes = len(self.core.list_node().items)
        self.until("one on each", lambda: self.apps.read_namespaced_daemon_set("d", self.space).status.number_available == nodes)

    def test_a_budget_holds_an_eviction_back(self):
        self.apps.create_namespaced_deployment(self.space, workload("d", 1))
        policy = client.PolicyV1Api()
        policy.create_namespaced_pod_disruption_budget(self.space, {
            "metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "d"}}}})

        def counted():
            status = policy.read_namespaced_pod_disruption_budget("b", self.space).status
            return status.current_healthy == 1 and status.observed_generation == 1

        self.until("the budget counts its pod", counted)
        name = self.pods("d")[0]
        eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name=name, namespace=self.space))
        error = self.refused(429, self.core.create_namespaced_pod_eviction, name, self.space, eviction)
        self.assertIn("Cannot evict pod as it would violate the pod's disruption budget.", error.body)
        self.assertIn("DisruptionBudget", error.body)


if __name__ == "__main__":
    unittest.main()
