"""kubernetes.leaderelection: two who want to lead, and one that does."""

import threading
import unittest

from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.configmaplock import ConfigMapLock
from space import Space


class Election(Space):
    def test_the_second_leads_when_the_first_is_gone(self):
        leading, order = {name: threading.Event() for name in ("one", "two")}, []

        def run(name):
            def started():
                order.append(name)
                leading[name].set()
                if name == "one":
                    # Ends the thread, as if the process had died: the lease is not given back.
                    raise SystemExit

            lock = ConfigMapLock("lock", self.space, name)
            made = electionconfig.Config(lock, lease_duration=4, renew_deadline=3, retry_period=1,
                                         onstarted_leading=started, onstopped_leading=lambda: None)
            made.onstopped_leading = None
            candidate = leaderelection.LeaderElection(made)
            if name == "one":
                # Acquired once and never renewed.
                candidate.acquire()
                started()
            candidate.run()

        threading.Thread(target=run, args=("one",), daemon=True).start()
        self.assertTrue(leading["one"].wait(20))
        threading.Thread(target=run, args=("two",), daemon=True).start()
        self.assertTrue(leading["two"].wait(40))
        self.assertEqual(order, ["one", "two"])
        record = self.core.read_namespaced_config_map("lock", self.space).metadata.annotations
        self.assertIn('"two"', record["control-plane.alpha.kubernetes.io/leader"])


if __name__ == "__main__":
    unittest.main()
