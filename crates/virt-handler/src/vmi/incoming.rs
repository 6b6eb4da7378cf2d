//! The target's part: the pod is made ready, the streams of the source are taken to it, and the VMI taken over.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::constants::label;
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigrationState as State};
use domain::MigrationChannel;
use k8s_openapi::api::core::v1::Pod;
use kit::connections::{Bounds, Connected, Connections, Seat};
use kit::peer::check_node;
use kit::queue::Next;
use kit::shutdown::CancellationToken;
use kit::store::Key;
use kit::{Chain, clock, merge_patch};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Resource as _, ResourceExt as _};
use rpc::launcher::{Empty, ExpectRequest};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::guest::Guest;
use super::status::Observed;
use super::{Context, pod};
use crate::Error;
use crate::hotplug;
use crate::launcher::{self, CALL, answer, timed};
use crate::migration::channel::{self, Hello, Stream};
use crate::migration::options::options;
use crate::migration::plan::{self, Coming, TargetStep};
use crate::migration::status::{self, Ready};
use crate::migration::{Arrival, Arrivals, Road, Welcome, address, lock, post_copy, uid};
use crate::storage::Purpose;

/// The volume of libvirt's own socket.
const LIBVIRT: &str = "libvirt-runtime";
/// Making a pod's disks ready.
const EXPECT: Duration = Duration::from_secs(120);
/// How long libvirt may take to start the guest that it was told to start.
const FINISH: Duration = Duration::from_secs(5);
/// For a launcher to end with all that is in its pod.
const END: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);
/// Streams in all; of those that have not said which migration they are of; and of one node.
const STREAMS: Bounds =
    Bounds { total: 256, strangers: 64, per_user: 96, patience: Duration::from_secs(10), idle: Duration::MAX };

/// Brings a VMI forward that is to come here.
pub(crate) async fn reconcile(context: &Context, key: &Key, vmi: &VirtualMachineInstance, guest: &Arc<Guest>) -> Next {
    let Some(state) = plan::state(vmi) else { return Next::Wait };
    let another = {
        let mut moving = guest.moving();
        let another = moving.coming != uid(state);
        uid(state).clone_into(&mut moving.coming);
        another
    };
    if another {
        // This node was cut off when the one before ended: its pod may be there still.
        guest.part();
    }
    let mut retry = false;
    for step in plan::target(state, coming(guest, state)) {
        if let Err(error) = execute(context, key, vmi, state, guest, step).await {
            let error = Chain(&error).to_string();
            tracing::info!(vmi = %key, migration = uid(state), ?step, error, "a step failed and will be tried again");
            retry = true;
            break;
        }
    }
    if let Err(error) = write(context, key, vmi, state, guest).await {
        tracing::info!(vmi = %key, error = %Chain(&error), "the status was not written");
        retry = true;
    }
    if retry { Next::Retry } else { Next::Wait }
}

fn coming(guest: &Guest, state: &State) -> Coming {
    let (connected, plugged, arrived) = guest.readiness();
    let moving = guest.moving();
    Coming {
        connected,
        // Which pod is met next is not known before it is.
        plugged: connected && plugged,
        arrived,
        expected: moving.expected == uid(state),
        listening: moving.welcome.as_ref().is_some_and(|welcome| welcome.uid == uid(state)),
        turned_away: moving.turned_away == uid(state),
        unfit: moving.unfit.as_ref().is_some_and(|(of, _)| of == uid(state)),
    }
}

async fn execute(
    context: &Context,
    key: &Key,
    vmi: &VirtualMachineInstance,
    state: &State,
    guest: &Arc<Guest>,
    step: TargetStep,
) -> Result<(), Error> {
    match step {
        TargetStep::Connect => {
            // A launcher that is new has been told nothing yet.
            guest.moving().expected.clear();
            pod::connect(context, key, vmi, guest).await
        }
        TargetStep::Plug => pod::plug(context, vmi, guest).await,
        TargetStep::Expect => {
            let launcher = pod::current(guest, vmi)?;
            let possible = match options(vmi, state).post_copy {
                true => post_copy::allow(&launcher, &context.node),
                false => Ok(()),
            };
            let prepared = match possible {
                Ok(()) => pod::prepare_disks(context, vmi, launcher.clone(), Purpose::Arrival).await,
                refused => refused,
            };
            match prepared {
                Err(error @ (Error::NoRoom { .. } | Error::PostCopy { .. })) => {
                    // Nobody tries again what cannot become true: the launcher ends, and with it the migration.
                    guest.moving().unfit = Some((uid(state).to_owned(), error.to_string()));
                    return Err(error);
                }
                prepared => prepared?,
            }
            for attached in hotplug::arriving(vmi) {
                hotplug::lend(&context.pods, &context.recorder, vmi, launcher.clone(), &attached, Purpose::Arrival)
                    .await?;
                guest.was_lent(&attached.volume);
            }
            let vmi = serde_json::to_string(vmi).map_err(|error| tonic::Status::internal(error.to_string()))?;
            answer(EXPECT, launcher.client.clone().expect(timed(ExpectRequest { vmi }, EXPECT))).await?;
            uid(state).clone_into(&mut guest.moving().expected);
            Ok(())
        }
        TargetStep::Listen => {
            let arrival = Arrival {
                vmi: key.clone(),
                uid: vmi.uid().unwrap_or_default(),
                from: state.source_node.clone().unwrap_or_default(),
                pod: pod::current(guest, vmi)?.pod,
                plain: plan::is_plain(state),
                over: CancellationToken::new(),
            };
            let mut moving = guest.moving();
            moving.welcome = None;
            lock(&context.arrivals).insert(uid(state).to_owned(), arrival);
            moving.welcome = Some(Welcome { uid: uid(state).to_owned(), arrivals: context.arrivals.clone() });
            let prepared = "VirtualMachineInstance Migration Target Prepared.";
            context.recorder.normal(&vmi.object_ref(&()), "PreparingTarget", prepared);
            Ok(())
        }
        TargetStep::TurnAway => {
            guest.moving().welcome = None;
            let launcher = pod::current(guest, vmi)?;
            answer(CALL, launcher.client.clone().kill(timed(Empty {}, CALL))).await?;
            uid(state).clone_into(&mut guest.moving().turned_away);
            Ok(())
        }
    }
}

/// Writes what this side has to tell; with the source's word that the domain has left, the VMI becomes this node's.
async fn write(
    context: &Context,
    key: &Key,
    vmi: &VirtualMachineInstance,
    state: &State,
    guest: &Guest,
) -> Result<(), Error> {
    let known = coming(guest, state);
    let ready = Ready {
        listens: known.listening.then(|| (context.road.address.clone(), context.road.port)),
        pod: guest.launcher().map(|launcher| launcher.pod).unwrap_or_default(),
        arrived: known.arrived,
        unfit: guest.moving().unfit.clone().filter(|(of, _)| of == uid(state)).map(|(_, why)| why),
    };
    let now = clock::seconds(clock::now());
    let before = vmi.status.as_deref().cloned().unwrap_or_default();
    let mut wanted = before.clone();
    wanted.migration_state = Some(Box::new(status::target(vmi, state, &ready, now)));
    let mut metadata = json!({ "resourceVersion": vmi.resource_version() });
    let here = status::takes_over(state, &ready);
    if here {
        wanted.node_name = Some(context.node.clone());
        let mine = VirtualMachineInstance { status: Some(Box::new(wanted)), ..vmi.clone() };
        let seen = Observed { host_model: context.host_model.clone(), ..guest.observed() };
        wanted = super::status::status(&mine, &seen, now);
        metadata["labels"] = json!({ label::NODE_NAME: context.node });
    }
    if wanted == before {
        return Ok(());
    }
    // Nothing, and not null, which would take the status away.
    let changes = merge_patch::difference(&json!(before), json!(wanted)).unwrap_or_else(|| json!({}));
    let patch = json!({ "metadata": metadata, "status": changes });
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &key.namespace);
    match api.patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(new) if here => {
            tracing::info!(vmi = %key, migration = uid(state), "the virtual machine has moved here");
            guest.moving().welcome = None;
            guest.announce();
            context.vmis.put(&new, Vec::new());
            let text = format!("The VirtualMachineInstance migrated to node {}.", context.node);
            context.recorder.normal(&vmi.object_ref(&()), "Migrated", text);
            context.queue.add(key.clone());
            Ok(())
        }
        Ok(new) => {
            context.arriving.put(&new, Vec::new());
            Ok(())
        }
        // Somebody wrote meanwhile, or the VMI is gone: the watch brings the key back.
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(()),
        Err(source) => Err(Error::Write { what: format!("the status of {key}"), source }),
    }
}

/// Takes the streams of other nodes until `stop`.
pub(crate) async fn serve(listener: TcpListener, context: Context, stop: CancellationToken) {
    let (slots, connections) = (Arc::new(Semaphore::new(STREAMS.total)), Connections::new(STREAMS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let (stream, address) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "accept failed");
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = stop.cancelled() => return,
        };
        let context = context.clone();
        let connected = connections.enter();
        let seat = Seat::new(connected.clone(), slot);
        kit::spawn("stream", async move {
            let taken = tokio::select! {
                taken = take(&context, stream, address, &connected) => taken,
                () = connected.shown_out() => Err("it said nothing, and others wait".to_owned()),
            };
            if let Err(why) = taken {
                tracing::warn!(%address, why, "a stream of a migration was refused");
            }
            drop(seat);
        })
        .detach();
    }
}

/// One stream, from the handshake to its end. The error says why it was refused.
async fn take(
    context: &Context,
    stream: TcpStream,
    address: SocketAddr,
    connected: &Arc<Connected>,
) -> Result<(), String> {
    let told = |error: &(dyn std::error::Error + 'static)| Chain(error).to_string();
    channel::tune(&stream).map_err(|error| told(&error))?;
    let mut first = [0];
    let peeked = tokio::time::timeout(CALL, stream.peek(&mut first)).await;
    peeked.map_err(|_| "it says nothing".to_owned())?.map_err(|error| told(&error))?;
    // A TLS handshake does not begin like a greeting.
    let (mut stream, identity): (Box<dyn Stream>, _) = if first == [b'{'] {
        (Box::new(stream), None)
    } else {
        let (stream, identity) = context.road.peers.accept(stream).await.map_err(|error| told(&error))?;
        (Box::new(stream), Some(identity))
    };
    let hello: Hello = channel::read_line(&mut stream).await.map_err(|error| told(&error))?;
    let met = async {
        let arrival = expected(&context.arrivals, &hello)?;
        match identity {
            Some(identity) => check_node(&identity, &arrival.from).map_err(|error| told(&error))?,
            None if !arrival.plain => return Err("this migration is to be encrypted".to_owned()),
            None => known_by_address(&context.road, &arrival.from, address).await?,
        }
        if hello.channel == channel::OUTCOME {
            return Ok((None, arrival));
        }
        let near = connect(context, &arrival, &hello.channel).await.map_err(|error| told(&error))?;
        Ok::<_, String>((Some(near), arrival))
    };
    let (near, arrival) = match met.await {
        Ok(met) => met,
        Err(why) => {
            // The source logs it too.
            let _ = channel::answer(&mut stream, Some(why.clone())).await;
            return Err(why);
        }
    };
    connected.introduce(&arrival.from);
    channel::answer(&mut stream, None).await.map_err(|error| told(&error))?;
    let Some(near) = near else {
        let runs = outcome(context, &arrival).await?;
        return channel::tell(&mut stream, runs).await.map_err(|error| told(&error));
    };
    tokio::select! {
        ended = channel::splice(near, stream) => match ended {
            Ok((_, got)) => tracing::debug!(channel = hello.channel, got, "a stream of a migration ended"),
            Err(error) => tracing::info!(channel = hello.channel, %error, "a stream of a migration broke"),
        },
        () = arrival.over.cancelled() => tracing::debug!(channel = hello.channel, "a stream of a migration was cut"),
    }
    Ok(())
}

/// Whether the guest runs here, once it is certain: after this it either does, or never will.
async fn outcome(context: &Context, arrival: &Arrival) -> Result<bool, String> {
    // Nothing more is told to libvirt here; what it was told before takes a moment.
    arrival.over.cancel();
    let guest = context.guest(&arrival.vmi).ok_or("the virtual machine is not known here")?;
    let Some(launcher) = guest.launcher() else {
        let (.., gone) = guest.migration();
        return if gone { Ok(false) } else { Err("the launcher is not connected".to_owned()) };
    };
    let deadline = Instant::now() + FINISH;
    while Instant::now() < deadline {
        if guest.readiness().2 {
            return Ok(true);
        }
        if !launcher.is_alive() {
            return Ok(false);
        }
        sleep(LOOK).await;
    }
    let killed = answer(CALL, launcher.client.clone().kill(timed(Empty {}, CALL))).await;
    killed.map_err(|error| Chain(&Error::from(error)).to_string())?;
    let deadline = Instant::now() + END;
    while launcher.is_alive() {
        if Instant::now() >= deadline {
            return Err("the launcher does not end".to_owned());
        }
        sleep(LOOK).await;
    }
    Ok(false)
}

/// The migration that a greeting means.
fn expected(arrivals: &Arrivals, hello: &Hello) -> Result<Arrival, String> {
    let found = lock(arrivals).get(&hello.migration).cloned();
    let same = |arrival: &Arrival| {
        arrival.vmi.namespace == hello.namespace && arrival.vmi.name == hello.name && arrival.uid == hello.uid
    };
    found.filter(same).ok_or_else(|| {
        format!("migration {} of {}/{} is not expected here", hello.migration, hello.namespace, hello.name)
    })
}

/// Without a certificate the source is who has the address of its node's agent.
async fn known_by_address(road: &Road, node: &str, address: SocketAddr) -> Result<(), String> {
    let api: Api<Pod> = Api::namespaced(road.client.clone(), &road.namespace);
    let agents = format!("{}={}", label::APP, label::APP_VIRT_HANDLER);
    let params = ListParams::default().labels(&agents).fields(&format!("spec.nodeName={node}"));
    let pods = api.list(&params).await.map_err(|error| Chain(&error).to_string())?;
    let ip = address.ip().to_canonical().to_string();
    let has = |pod: &Pod| {
        if address::on_network(pod).contains(&ip) {
            return true;
        }
        let status = pod.status.as_ref();
        let all = status.and_then(|status| status.pod_ips.as_ref()).into_iter().flatten();
        status.and_then(|status| status.pod_ip.as_ref()) == Some(&ip) || all.into_iter().any(|own| own.ip == ip)
    };
    if pods.items.iter().any(has) {
        return Ok(());
    }
    Err(format!("{ip} is not the address of virt-handler on node {node}"))
}

/// The socket in the pod that a channel leads to.
async fn connect(context: &Context, arrival: &Arrival, name: &str) -> Result<UnixStream, Error> {
    let channel =
        MigrationChannel::named(name).ok_or_else(|| Error::Launcher(format!("there is no channel {name:?}")))?;
    let (volume, socket) = match channel {
        MigrationChannel::Libvirt => (LIBVIRT, "libvirt-sock"),
        MigrationChannel::Memory | MigrationChannel::Disks => (launcher::SOCKETS, channel.socket()),
    };
    launcher::open(&context.pods, &arrival.pod, volume, socket).await.map(|(stream, _)| stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_expected_is_taken_and_only_while_it_is() {
        let arrivals = Arrivals::default();
        let arrival = Arrival {
            vmi: Key::new("n", "a"),
            uid: "u".into(),
            from: "node1".into(),
            pod: "p".into(),
            plain: false,
            over: CancellationToken::new(),
        };
        let over = arrival.over.clone();
        lock(&arrivals).insert("m".into(), arrival);
        let welcome = Welcome { uid: "m".into(), arrivals: arrivals.clone() };
        let hello = |migration: &str, uid: &str| Hello {
            namespace: "n".into(),
            name: "a".into(),
            uid: uid.into(),
            migration: migration.into(),
            channel: "memory".into(),
        };
        assert_eq!(expected(&arrivals, &hello("m", "u")).unwrap().from, "node1");
        let refused = expected(&arrivals, &hello("other", "u")).unwrap_err();
        assert_eq!(refused, "migration other of n/a is not expected here");
        assert!(expected(&arrivals, &hello("m", "other")).is_err());
        drop(welcome);
        assert!(over.is_cancelled() && expected(&arrivals, &hello("m", "u")).is_err());
    }
}
