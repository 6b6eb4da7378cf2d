//! The scheduler and the controllers say that they run.

use kit::vital::State;
use kube_apiserver::ApiServer;
use kube_controllers::Options;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn the_scheduler_and_the_controllers_say_as_long_as_they_run_that_they_do() {
    let server = ApiServer::in_memory().await.unwrap();
    let (vitals, stop) = (server.vitals(), CancellationToken::new());
    let states = || ["scheduler", "controller-manager"].map(|part| vitals.state(part));
    assert_eq!(states(), [State::NotStarted; 2]);
    let options = Options { vitals: vitals.clone(), ..Options::default() };
    let run = kit::spawn("controllers", kube_controllers::run(server.client(), options, stop.clone()));
    tokio::task::yield_now().await;
    assert_eq!(states(), [State::Running; 2]);
    stop.cancel();
    run.await.unwrap().unwrap();
    assert_eq!(states(), [State::Ended; 2]);
}
