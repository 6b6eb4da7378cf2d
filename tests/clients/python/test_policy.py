"""ResourceQuota, LimitRange and PodSecurity of a namespace."""

import concurrent.futures
import unittest

from kubernetes import client
from space import Space, pod


def sized(name, **resources):
    made = pod(name)
    made["spec"]["containers"][0]["resources"] = resources
    return made


class Policy(Space):
    def quota(self, name, hard, **spec):
        self.core.create_namespaced_resource_quota(self.space, {"metadata": {"name": name}, "spec": {"hard": hard, **spec}})

        def counted():
            status = self.core.read_namespaced_resource_quota(name, self.space).status
            return status and status.hard == hard and set(status.used or {}) == set(hard) and status

        return self.until(f"quota {name} is counted", counted)

    def used(self, name):
        return self.core.read_namespaced_resource_quota(name, self.space).status.used

    def test_a_quota_bounds_many_at_once(self):
        self.quota("q", {"count/configmaps": "6", "pods": "0"})

        def make(number):
            try:
                self.core.create_namespaced_config_map(self.space, {"metadata": {"name": f"m{number}"}})
                return True
            except client.ApiException as error:
                self.assertEqual(error.status, 403, error.body)
                self.assertIn("exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=6, "
                              "limited: count/configmaps=6", error.body)
                return False

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            made = sum(pool.map(make, range(24)))
        # One is the cluster's own, with its authority.
        self.assertEqual((made, self.used("q")["count/configmaps"]), (5, "6"))
        error = self.refused(403, self.core.create_namespaced_pod, self.space, pod("p"))
        self.assertIn("exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0", error.body)
        self.core.delete_namespaced_config_map("kube-root-ca.crt", self.space)
        self.until("a place is free, or taken by the cluster again", lambda: self.used("q")["count/configmaps"] in ("5", "6"))

    def test_a_quota_wants_what_it_bounds_to_be_said(self):
        self.quota("q", {"requests.cpu": "1", "limits.memory": "1Gi"})
        error = self.refused(403, self.core.create_namespaced_pod, self.space, pod("p"))
        self.assertIn("failed quota: q: must specify limits.memory for: main; requests.cpu for: main", error.body)
        self.core.create_namespaced_pod(self.space, sized("a", requests={"cpu": "600m"}, limits={"memory": "100Mi"}))
        self.assertEqual(self.used("q"), {"requests.cpu": "600m", "limits.memory": "100Mi"})
        error = self.refused(403, self.core.create_namespaced_pod, self.space, sized("b", requests={"cpu": "500m"}, limits={"memory": "1Mi"}))
        self.assertIn("exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=600m, limited: requests.cpu=1", error.body)

    def test_a_quota_has_a_scope(self):
        self.quota("q", {"pods": "0"}, scopes=["BestEffort"])
        self.refused(403, self.core.create_namespaced_pod, self.space, pod("p"))
        self.core.create_namespaced_pod(self.space, sized("p", requests={"cpu": "1m"}))
        self.quota("high", {"pods": "0"}, scopeSelector={"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["system-cluster-critical"]}]})
        urgent = sized("u", requests={"cpu": "1m"})
        urgent["spec"]["priorityClassName"] = "system-cluster-critical"
        self.assertIn("exceeded quota: high", self.refused(403, self.core.create_namespaced_pod, self.space, urgent).body)

    def test_a_range_of_limits_fills_in_and_refuses(self):
        limits = [{"type": "Container", "default": {"cpu": "200m"}, "defaultRequest": {"cpu": "100m"}, "min": {"cpu": "50m"},
                   "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "4"}},
                  {"type": "Pod", "max": {"memory": "1Gi"}},
                  {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}]
        made = self.core.create_namespaced_limit_range(self.space, {"metadata": {"name": "l"}, "spec": {"limits": limits}})
        self.assertEqual(made.spec.limits[0].default_request, {"cpu": "100m"})

        def check(resources, *messages):
            error = self.refused(403, self.core.create_namespaced_pod, self.space, sized("p", **resources))
            for message in messages:
                self.assertIn(message, error.body)

        memory = {"memory": "100Mi"}
        check({"requests": {"cpu": "10m", **memory}, "limits": memory}, "minimum cpu usage per Container is 50m, but request is 10m")
        check({"limits": {"cpu": "2", **memory}}, "maximum cpu usage per Container is 1, but limit is 2")
        check({"requests": {"cpu": "100m"}, "limits": {"cpu": "1", **memory}},
              "cpu max limit to request ratio per Container is 4, but provided ratio is 10.000000")
        check({}, "maximum memory usage per Pod is 1Gi.  No limit is specified")
        check({"limits": {"memory": "2Gi"}}, "maximum memory usage per Pod is 1Gi, but limit is 2Gi")
        filled = self.core.create_namespaced_pod(self.space, sized("p", limits=memory)).spec.containers[0].resources
        self.assertEqual((filled.requests["cpu"], filled.limits["cpu"]), ("100m", "200m"))
        claim = {"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "3Gi"}}}}
        error = self.refused(403, self.core.create_namespaced_persistent_volume_claim, self.space, claim)
        self.assertIn("maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi", error.body)

    def test_pod_security_refuses_and_warns(self):
        labels = {"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"}
        self.core.patch_namespace(self.space, {"metadata": {"labels": labels}})
        host = pod("p", hostNetwork=True)
        host["spec"]["containers"][0]["securityContext"] = {"privileged": True}
        error = self.refused(403, self.core.create_namespaced_pod, self.space, host)
        self.assertIn('violates PodSecurity \\"baseline:latest\\": host namespaces (hostNetwork=true), privileged '
                      '(container \\"main\\" must not set securityContext.privileged=true)', error.body)
        _, _, headers = self.core.create_namespaced_pod_with_http_info(self.space, pod("p"))
        self.assertIn('would violate PodSecurity \\"restricted:latest\\": allowPrivilegeEscalation != false', headers["Warning"])
        deployment = {"metadata": {"name": "d"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "p"}}, "template": host}}
        del host["metadata"]["name"]
        _, _, headers = client.AppsV1Api().create_namespaced_deployment_with_http_info(self.space, deployment)
        self.assertIn("would violate PodSecurity", headers["Warning"])
        enforce = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
        _, _, headers = self.core.patch_namespace_with_http_info(self.space, enforce)
        self.assertIn('existing pods in namespace', headers["Warning"])
        wrong = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "strict"}}}
        error = self.refused(422, self.core.patch_namespace, self.space, wrong)
        self.assertIn("must be one of privileged, baseline, restricted", error.body)


if __name__ == "__main__":
    unittest.main()
