"""BatchV1Api: Jobs that finish, fail, count by index and wait, and the CronJobs that make them."""

import unittest

from kubernetes import client
from space import IDLE, Space, template


def job(script, name="j", **spec):
    return {"metadata": {"name": name}, "spec": {"template": template({"run": name}, script, restartPolicy="Never"), **spec}}


class Batch(Space):
    def setUp(self):
        super().setUp()
        self.batch = client.BatchV1Api()

    def ended(self, name="j"):
        def condition():
            found = self.batch.read_namespaced_job_status(name, self.space).status.conditions or []
            return next((c for c in found if c.type in ("Complete", "Failed") and c.status == "True"), None)

        return self.until(f"job {name} ends", condition, 120)

    def status(self, name="j"):
        return self.batch.read_namespaced_job(name, self.space).status

    def test_a_job_completes_and_is_cleaned(self):
        self.batch.create_namespaced_job(self.space, job("true", completions=3, parallelism=2, ttlSecondsAfterFinished=0))
        self.until("the job is cleaned away", lambda: not self.batch.list_namespaced_job(self.space).items, 120)

    def test_an_indexed_job_counts_its_indexes(self):
        script = "test $JOB_COMPLETION_INDEX != 1"
        limits = {"backoffLimitPerIndex": 0, "maxFailedIndexes": 3}
        self.batch.create_namespaced_job(self.space, job(script, completions=3, parallelism=3, completionMode="Indexed", **limits))
        end = self.ended()
        self.assertEqual((end.type, end.reason), ("Failed", "FailedIndexes"))
        self.assertEqual((self.status().completed_indexes, self.status().failed_indexes), ("0,2", "1"))

    def test_a_failure_policy_ends_a_job_at_once(self):
        rule = {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}}
        self.batch.create_namespaced_job(self.space, job("exit 42", backoffLimit=6, podFailurePolicy={"rules": [rule]}))
        end = self.ended()
        self.assertEqual((end.type, end.reason), ("Failed", "PodFailurePolicy"))
        self.assertRegex(end.message, r"Container main for pod .* failed with exit code 42 matching FailJob rule at index 0")
        self.assertEqual(self.status().failed, 1)

    def test_a_success_policy_ends_a_job_early(self):
        script = "test $JOB_COMPLETION_INDEX = 0 || sleep 1000"
        policy = {"rules": [{"succeededIndexes": "0"}]}
        self.batch.create_namespaced_job(self.space, job(script, completions=2, parallelism=2, completionMode="Indexed", successPolicy=policy))
        end = self.ended()
        self.assertEqual((end.type, end.reason), ("Complete", "SuccessPolicy"))
        conditions = {c.type: c.reason for c in self.status().conditions}
        self.assertEqual(conditions["SuccessCriteriaMet"], "SuccessPolicy")

    def test_a_job_waits_while_it_is_suspended(self):
        self.batch.create_namespaced_job(self.space, job("true", suspend=True))
        self.until("it says so", lambda: any(c.type == "Suspended" and c.status == "True" for c in self.status().conditions or []))
        self.assertEqual(self.core.list_namespaced_pod(self.space).items, [])
        self.batch.patch_namespaced_job("j", self.space, {"spec": {"suspend": False}})
        self.assertEqual(self.ended().type, "Complete")

    def test_nobody_touches_a_job_that_somebody_else_manages(self):
        self.batch.create_namespaced_job(self.space, job("true", managedBy="example.com/other"))
        self.batch.create_namespaced_job(self.space, job("true", name="ours"))
        self.ended("ours")
        self.assertIsNone(self.status().start_time)
        self.assertIsNone(self.status().conditions)

    def test_a_cron_job_makes_jobs(self):
        spec = {"schedule": "* * * * *", "suspend": True, "timeZone": "Europe/Berlin",
                "jobTemplate": {"spec": job(IDLE)["spec"]}}
        made = self.batch.create_namespaced_cron_job(self.space, {"metadata": {"name": "c"}, "spec": spec})
        self.assertEqual((made.spec.concurrency_policy, made.spec.successful_jobs_history_limit), ("Allow", 3))
        bad = {"metadata": {"name": "d"}, "spec": {**spec, "schedule": "often", "timeZone": "Mars/Base"}}
        error = self.refused(422, self.batch.create_namespaced_cron_job, self.space, bad)
        self.assertIn("spec.schedule", error.body)
        self.assertIn("unknown time zone Mars/Base", error.body)


if __name__ == "__main__":
    unittest.main()
