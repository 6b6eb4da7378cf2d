//! Queries, and what is replied.

use hickory_proto::op::Query;
use proptest::prelude::*;

use super::super::zone::{Records, origin};
use super::*;

fn zone() -> Zone {
    let mut zone = Zone::new(origin("example.org").unwrap(), Some([192, 0, 2, 1].into()));
    let mut records = Records::from([
        ("blue.web.ns".to_owned(), vec!["192.168.1.2".parse().unwrap(), "fd00::2".parse().unwrap()]),
        ("web.ns".to_owned(), vec!["192.168.1.2".parse().unwrap()]),
    ]);
    let many = (0..200).map(|last| IpAddr::from([10, 0, 0, last])).collect();
    records.insert("many.web.ns".to_owned(), many);
    zone.replace(records, 7);
    zone
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut query = Message::query();
    query.queries.push(Query::query(Name::from_ascii(name).unwrap(), kind));
    query
}

fn ask(zone: Option<&Zone>, query: &Message, transport: Transport) -> Message {
    let reply = answer(zone, &query.to_vec().unwrap(), transport).unwrap();
    Message::from_vec(&reply).unwrap()
}

/// The code, and the data of answers and authorities.
#[track_caller]
fn check(name: &str, kind: RecordType, code: ResponseCode, answers: &[&str], authorities: usize) {
    let reply = ask(Some(&zone()), &query(name, kind), Transport::Datagram);
    assert_eq!(reply.metadata.response_code, code);
    let found: Vec<String> = reply.answers.iter().map(|record| record.data.to_string()).collect();
    assert_eq!((found, reply.authorities.len()), (answers.iter().map(|one| (*one).to_owned()).collect(), authorities));
    assert_eq!(reply.metadata.authoritative, code != ResponseCode::Refused);
}

#[test]
fn names_of_machines_have_their_addresses() {
    check("blue.web.ns.vm.example.org.", RecordType::A, ResponseCode::NoError, &["192.168.1.2"], 0);
    check("BLUE.Web.ns.vm.Example.org.", RecordType::AAAA, ResponseCode::NoError, &["fd00::2"], 0);
    check("web.ns.vm.example.org.", RecordType::A, ResponseCode::NoError, &["192.168.1.2"], 0);
    check("web.ns.vm.example.org.", RecordType::AAAA, ResponseCode::NoError, &[], 1);
    check("ns.vm.example.org.", RecordType::A, ResponseCode::NoError, &["192.0.2.1"], 0);
    check("none.ns.vm.example.org.", RecordType::A, ResponseCode::NXDomain, &[], 1);
    check("blue.web.other.vm.example.org.", RecordType::A, ResponseCode::NXDomain, &[], 1);
}

#[test]
fn the_zone_says_who_answers_for_it_and_other_zones_are_refused() {
    check("vm.example.org.", RecordType::NS, ResponseCode::NoError, &["ns.vm.example.org."], 0);
    let reply = ask(Some(&zone()), &query("vm.example.org.", RecordType::SOA), Transport::Datagram);
    let RData::SOA(soa) = &reply.answers[0].data else { panic!("{reply:?}") };
    assert_eq!((soa.serial, soa.refresh, soa.expire), (7, 3600, 1_209_600));
    for other in ["example.org.", "org.", "other.org.", "xvm.example.org."] {
        check(other, RecordType::A, ResponseCode::Refused, &[], 0);
    }
    check("vm.example.org.", RecordType::AXFR, ResponseCode::Refused, &[], 0);
}

#[test]
fn what_does_not_fit_is_asked_again_by_tcp() {
    let query = query("many.web.ns.vm.example.org.", RecordType::A);
    let short = ask(Some(&zone()), &query, Transport::Datagram);
    assert!(short.metadata.truncation && short.answers.is_empty());
    let long = ask(Some(&zone()), &query, Transport::Stream);
    assert!(!long.metadata.truncation && long.answers.len() == 200);
}

#[test]
fn before_machines_are_known_clients_try_again() {
    let reply = ask(None, &query("web.ns.vm.", RecordType::A), Transport::Datagram);
    assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
}

#[test]
fn replies_are_not_answered() {
    let mut message = query("web.ns.vm.example.org.", RecordType::A);
    message.metadata.message_type = MessageType::Response;
    assert_eq!(answer(Some(&zone()), &message.to_vec().unwrap(), Transport::Datagram), None);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_and_every_datagram_fits(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        if let Some(reply) = answer(Some(&zone()), &bytes, Transport::Datagram) {
            prop_assert!(reply.len() <= MAX_DATAGRAM);
        }
    }

    #[test]
    fn no_name_makes_it_panic(label in "[a-zA-Z0-9_.-]{0,40}", kind in any::<u16>()) {
        if let Ok(name) = Name::from_ascii(format!("{label}.vm.example.org.")) {
            let mut query = Message::query();
            query.queries.push(Query::query(name, RecordType::from(kind)));
            if let Ok(bytes) = query.to_vec() {
                answer(Some(&zone()), &bytes, Transport::Datagram);
            }
        }
    }
}
