//! Who one is: tokens of accounts, impersonation, reviews.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest, TokenReview};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;

use super::{Space, Test, object};

pub(crate) const TESTS: &[Test] = &[
    ("a_token_is_who_it_is_for", |space| Box::pin(token(space))),
    ("one_acts_as_another", |space| Box::pin(impersonation(space))),
];

async fn config() -> Result<Config> {
    let read = Kubeconfig::read_from(e2e::kubeconfig()).context("cannot read the kubeconfig")?;
    Ok(Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?)
}

async fn who(client: &Client) -> Result<(String, Vec<String>)> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    let user = answer.status.and_then(|status| status.user_info).context("nobody")?;
    Ok((user.username.unwrap_or_default(), user.groups.unwrap_or_default()))
}

async fn token(space: Space) -> Result<()> {
    let accounts: Api<ServiceAccount> = space.api();
    accounts.create(&PostParams::default(), &object(json!({"metadata": {"name": "robot"}}))?).await?;
    let request: TokenRequest = object(json!({"spec": {"audiences": [], "expirationSeconds": 600}}))?;
    let granted = accounts.create_token_request("robot", &PostParams::default(), &request).await?;
    let token = granted.status.context("no token")?.token;
    let mut config = config().await?;
    config.auth_info = kube::config::AuthInfo { token: Some(token.clone().into()), ..Default::default() };
    let robot = Client::try_from(config)?;
    let name = format!("system:serviceaccount:{}:robot", space.name);
    ensure!(who(&robot).await?.0 == name);
    let maps: Api<ConfigMap> = Api::namespaced(robot, &space.name);
    match maps.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) => ensure!(status.code == 403 && status.message.contains(&name), "{status:?}"),
        other => anyhow::bail!("{other:?}"),
    }
    let reviews: Api<TokenReview> = Api::all(space.client.clone());
    let review = reviews.create(&PostParams::default(), &object(json!({"spec": {"token": token}}))?).await?;
    let status = review.status.context("no status")?;
    ensure!(status.authenticated == Some(true) && status.user.and_then(|u| u.username) == Some(name), "not the robot");
    Ok(())
}

async fn impersonation(_space: Space) -> Result<()> {
    let mut config = config().await?;
    config.auth_info.impersonate = Some("eve".into());
    config.auth_info.impersonate_groups = Some(vec!["team".into()]);
    let eve = Client::try_from(config)?;
    let (name, groups) = who(&eve).await?;
    ensure!(name == "eve" && groups == ["team", "system:authenticated"], "{name} {groups:?}");
    let reviews: Api<SelfSubjectAccessReview> = Api::all(eve);
    let question =
        object(json!({"spec": {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "default"}}}))?;
    let answer = reviews.create(&PostParams::default(), &question).await?;
    ensure!(answer.status.is_some_and(|status| !status.allowed));
    Ok(())
}
