"""RBAC, reviews, tokens, certificates and impersonation."""

import base64
import pathlib
import subprocess
import tempfile
import unittest

from kubernetes import client, config
from space import Space


def signing_request(directory, subject):
    key = pathlib.Path(directory, "key.pem")
    command = ["openssl", "req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-subj", subject]
    request = subprocess.run(command, check=True, capture_output=True).stdout
    return base64.b64encode(request).decode(), key


class Access(Space):
    def setUp(self):
        super().setUp()
        self.rbac = client.RbacAuthorizationV1Api()
        self.authorization = client.AuthorizationV1Api()

    def impersonating(self, **headers):
        """An API client that acts as somebody else."""
        other = client.ApiClient()
        for name, value in headers.items():
            other.set_default_header(name.replace("_", "-"), value)
        return other

    def with_token(self, token):
        configuration = client.Configuration.get_default_copy()
        configuration.cert_file = configuration.key_file = None
        configuration.api_key = {"authorization": f"Bearer {token}"}
        return client.CoreV1Api(client.ApiClient(configuration))

    def test_a_role_gives_what_it_says(self):
        rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]
        self.rbac.create_namespaced_role(self.space, {"metadata": {"name": "reader"}, "rules": rules})
        binding = {"metadata": {"name": "bob"}, "subjects": [{"kind": "User", "name": "bob"}],
                   "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}}
        made = self.rbac.create_namespaced_role_binding(self.space, binding)
        self.assertEqual(made.subjects[0].api_group, "rbac.authorization.k8s.io")
        bob = client.CoreV1Api(self.impersonating(Impersonate_User="bob"))
        bob.list_namespaced_config_map(self.space)
        error = self.refused(403, bob.list_namespaced_secret, self.space)
        self.assertIn('secrets is forbidden: User \\"bob\\" cannot list resource \\"secrets\\"', error.body)
        binding["roleRef"]["name"] = "other"
        self.refused(422, self.rbac.replace_namespaced_role_binding, "bob", self.space, binding)

    def test_reviews_answer(self):
        attributes = {"namespace": self.space, "verb": "delete", "resource": "pods"}
        mine = self.authorization.create_self_subject_access_review({"spec": {"resourceAttributes": attributes}})
        self.assertTrue(mine.status.allowed)
        theirs = self.authorization.create_subject_access_review({"spec": {"user": "bob", "resourceAttributes": attributes}})
        self.assertFalse(theirs.status.allowed)
        local = {"metadata": {"namespace": self.space}, "spec": {"user": "bob", "groups": ["system:masters"], "resourceAttributes": attributes}}
        self.assertTrue(self.authorization.create_namespaced_local_subject_access_review(self.space, local).status.allowed)
        attributes["namespace"] = "default"
        error = self.refused(422, self.authorization.create_namespaced_local_subject_access_review, self.space, local)
        self.assertIn("must match metadata.namespace", error.body)
        self.refused(422, self.authorization.create_subject_access_review, {"spec": {"user": "bob"}})
        rules = self.authorization.create_self_subject_rules_review({"spec": {"namespace": self.space}})
        self.assertTrue(any("*" in rule.verbs for rule in rules.status.resource_rules))
        requirement = {"key": "app", "operator": "In", "values": ["a"]}
        selected = {"verb": "list", "resource": "pods", "labelSelector": {"requirements": [requirement]}}
        self.assertTrue(self.authorization.create_self_subject_access_review({"spec": {"resourceAttributes": selected}}).status.allowed)
        selected["labelSelector"] = {"requirements": [requirement], "rawSelector": "app"}
        error = self.refused(422, self.authorization.create_self_subject_access_review, {"spec": {"resourceAttributes": selected}})
        self.assertIn("may not specified at the same time as requirements", error.body)

    def test_an_account_has_tokens(self):
        self.core.create_namespaced_service_account(self.space, {"metadata": {"name": "robot"}})
        request = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[], expiration_seconds=3600))
        answer = self.core.create_namespaced_service_account_token("robot", self.space, request)
        robot = self.with_token(answer.status.token)
        error = self.refused(403, robot.list_namespaced_pod, self.space)
        self.assertIn(f"system:serviceaccount:{self.space}:robot", error.body)
        review = client.AuthenticationV1Api().create_token_review({"spec": {"token": answer.status.token}})
        self.assertTrue(review.status.authenticated)
        self.assertIn("system:serviceaccounts", review.status.user.groups)
        self.assertEqual(len(review.status.user.extra["authentication.kubernetes.io/credential-id"]), 1)
        wrong = client.AuthenticationV1Api().create_token_review({"spec": {"token": "nonsense"}})
        self.assertFalse(wrong.status.authenticated)
        annotations = {"kubernetes.io/service-account.name": "robot"}
        self.core.create_namespaced_secret(self.space, {
            "metadata": {"name": "legacy", "annotations": annotations}, "type": "kubernetes.io/service-account-token"})
        data = self.until("the legacy token", lambda: self.core.read_namespaced_secret("legacy", self.space).data)
        self.assertEqual(sorted(data), ["ca.crt", "namespace", "token"])
        self.refused(403, self.with_token(base64.b64decode(data["token"]).decode()).list_namespaced_pod, self.space)
        self.core.delete_namespaced_service_account("robot", self.space)
        self.refused(401, robot.list_namespaced_pod, self.space)

    def test_who_one_is(self):
        masked = self.impersonating(Impersonate_User="eve", Impersonate_Group="team", Impersonate_Uid="7",
                                    **{"Impersonate_Extra_example.com%2fscope": "narrow"})
        user = client.AuthenticationV1Api(masked).create_self_subject_review({}).status.user_info
        self.assertEqual((user.username, user.uid), ("eve", "7"))
        self.assertEqual((user.groups, user.extra), (["team", "system:authenticated"], {"example.com/scope": ["narrow"]}))

    def test_a_certificate_is_signed_and_works(self):
        certificates = client.CertificatesV1Api()
        with tempfile.TemporaryDirectory() as directory:
            request, key = signing_request(directory, "/O=team/CN=carol")
            name = f"{self.space}-carol"
            body = {"metadata": {"name": name}, "spec": {"request": request, "expirationSeconds": 3600,
                    "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}}
            made = certificates.create_certificate_signing_request(body)
            self.addCleanup(certificates.delete_certificate_signing_request, name)
            self.assertEqual(made.spec.username, "kubernetes-admin")
            self.assertIsNone(made.status.conditions)
            made.status.conditions = [client.V1CertificateSigningRequestCondition(
                type="Approved", status="True", reason="Tested", message="by the suite")]
            certificates.replace_certificate_signing_request_approval(name, made)
            issued = self.until("the certificate", lambda: certificates.read_certificate_signing_request(name).status.certificate)
            chain = pathlib.Path(directory, "cert.pem")
            chain.write_bytes(base64.b64decode(issued))
            configuration = client.Configuration.get_default_copy()
            configuration.cert_file, configuration.key_file = str(chain), str(key)
            carol = client.ApiClient(configuration)
            user = client.AuthenticationV1Api(carol).create_self_subject_review({}).status.user_info
            self.assertEqual((user.username, user.groups), ("carol", ["team", "system:authenticated"]))
            self.refused(403, client.CoreV1Api(carol).list_namespaced_pod, self.space)
        bad = {"metadata": {"name": name + "-bad"}, "spec": {"request": request, "signerName": "kubernetes.io/kube-apiserver-client",
               "usages": ["server auth"]}}
        certificates.create_certificate_signing_request(bad)
        self.addCleanup(certificates.delete_certificate_signing_request, name + "-bad")
        approved = [{"type": "Approved", "status": "True", "reason": "Tested"}]
        certificates.patch_certificate_signing_request_approval(name + "-bad", {"status": {"conditions": approved}})

        def failed():
            conditions = certificates.read_certificate_signing_request(name + "-bad").status.conditions
            return next((c for c in conditions if c.type == "Failed"), None)

        self.assertEqual(self.until("the signer's refusal", failed).reason, "SignerValidationFailure")


if __name__ == "__main__":
    config.load_kube_config()
    unittest.main()
