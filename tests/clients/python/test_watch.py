"""watch.Watch: from the beginning, from a revision, through bookmarks, selectors and revisions that are gone."""

import threading
import time
import unittest

from kubernetes import client, watch
from space import Space


class Watching(Space):
    def make(self, name, **labels):
        labels["made"] = "here"
        return self.core.create_namespaced_config_map(self.space, {"metadata": {"name": name, "labels": labels}})

    def test_events_follow_a_list(self):
        self.make("before")
        listed = self.core.list_namespaced_config_map(self.space, label_selector="made")
        for name in ("a", "b"):
            self.make(name)
        self.core.patch_namespaced_config_map("a", self.space, {"data": {"k": "v"}})
        self.core.delete_namespaced_config_map("b", self.space)
        seen = []
        watcher = watch.Watch()
        for event in watcher.stream(self.core.list_namespaced_config_map, self.space, timeout_seconds=20, label_selector="made",
                                    resource_version=listed.metadata.resource_version):
            seen.append((event["type"], event["object"].metadata.name, event["raw_object"]["kind"]))
            if len(seen) == 4:
                watcher.stop()
        order = [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
        self.assertEqual(seen, [(*each, "ConfigMap") for each in order])

    def test_a_watch_without_a_revision_begins_with_what_is_there(self):
        self.make("a", app="x")
        self.make("b", app="y")
        watcher = watch.Watch()
        for event in watcher.stream(self.core.list_namespaced_config_map, self.space, label_selector="app=x", timeout_seconds=20):
            self.assertEqual((event["type"], event["object"].metadata.name), ("ADDED", "a"))
            watcher.stop()

    def test_an_object_enters_and_leaves_a_selection(self):
        start = self.make("a", app="x").metadata.resource_version
        for value in ("y", "x"):
            self.core.patch_namespaced_config_map("a", self.space, {"metadata": {"labels": {"app": value}}})
        seen = []
        watcher = watch.Watch()
        for event in watcher.stream(self.core.list_namespaced_config_map, self.space, label_selector="app=x",
                                    resource_version=start, timeout_seconds=20):
            seen.append(event["type"])
            if len(seen) == 2:
                watcher.stop()
        self.assertEqual(seen, ["DELETED", "ADDED"])

    def test_a_watch_ends_after_its_time(self):
        start = time.monotonic()
        selector = "metadata.name=nothing-has-this-name"
        events = list(watch.Watch().stream(self.core.list_namespaced_config_map, self.space, field_selector=selector, timeout_seconds=1))
        self.assertEqual(events, [])
        self.assertLess(time.monotonic() - start, 10)

    def test_bookmarks_carry_the_revision_on(self):
        self.make("a")
        watcher = watch.Watch()
        answer = self.core.list_namespaced_config_map(
            self.space, watch=True, allow_watch_bookmarks=True, send_initial_events=True, timeout_seconds=20,
            resource_version_match="NotOlderThan", _preload_content=False)
        try:
            for line in watch.watch.iter_resp_lines(answer):
                event = watcher.unmarshal_event(line, "object") if line else {"type": ""}
                if event["type"] == "BOOKMARK":
                    metadata = event["raw_object"]["metadata"]
                    break
        finally:
            answer.close()
        self.assertEqual(metadata["annotations"], {"k8s.io/initial-events-end": "true"})
        self.assertGreater(int(metadata["resourceVersion"]), 0)

    def test_a_revision_nobody_has_reached_is_said_to_be_too_large(self):
        start = self.make("a").metadata.resource_version
        error = self.refused(504, self.core.list_namespaced_config_map, self.space, resource_version=str(int(start) + 10**6),
                             resource_version_match="NotOlderThan")
        self.assertIn("Too large resource version", error.body)

    def test_many_watch_at_once(self):
        seen, lock = [], threading.Lock()
        start = self.core.list_namespaced_config_map(self.space).metadata.resource_version

        def follow():
            own = watch.Watch()
            names = []
            for event in own.stream(client.CoreV1Api().list_namespaced_config_map, self.space, resource_version=start, timeout_seconds=30):
                if event["object"].metadata.name.startswith("n"):
                    names.append(event["object"].metadata.name)
                if len(names) == 20:
                    own.stop()
            with lock:
                seen.append(names)

        threads = [threading.Thread(target=follow) for _ in range(10)]
        for thread in threads:
            thread.start()
        for number in range(20):
            self.make(f"n{number:02}")
        for thread in threads:
            thread.join()
        self.assertEqual(seen, [[f"n{number:02}" for number in range(20)]] * 10)


if __name__ == "__main__":
    unittest.main()
