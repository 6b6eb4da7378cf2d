//! From the bytes of a query to the bytes of a reply. Pure: no query makes it panic, and no reply is answered.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, NS, SOA};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::zone::Zone;

/// Largest datagram that is read, and sent to a client that can take it: what crosses every network in one piece.
pub const MAX_DATAGRAM: usize = 1232;
/// Seconds for which clients may keep a name, or that there is none.
const TTL: u32 = 30;
/// Of the zone itself.
const REFRESH: i32 = 3600;
const EXPIRE: i32 = 1_209_600;

/// How the query came, which decides how long the reply may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP: at most what the client says it takes.
    Datagram,
    /// TCP.
    Stream,
}

/// The reply to `query`; none where it is not a query that can be answered. Without a zone the machines are not known yet.
pub fn answer(zone: Option<&Zone>, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).ok()?;
    if query.metadata.message_type != MessageType::Query {
        return None;
    }
    let limit = match transport {
        Transport::Datagram => usize::from(query.max_payload()).clamp(512, MAX_DATAGRAM),
        Transport::Stream => usize::from(u16::MAX),
    };
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.queries.clone_from(&query.queries);
    if query.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(u16::try_from(MAX_DATAGRAM).unwrap_or(512));
        reply.edns = Some(edns);
    }
    fill(zone, &query, &mut reply);
    encode(reply, limit)
}

fn fill(zone: Option<&Zone>, query: &Message, reply: &mut Message) {
    if query.metadata.op_code != OpCode::Query {
        reply.metadata.response_code = ResponseCode::NotImp;
        return;
    }
    let [question] = query.queries.as_slice() else {
        reply.metadata.response_code = ResponseCode::FormErr;
        return;
    };
    let Some(zone) = zone else {
        reply.metadata.response_code = ResponseCode::ServFail;
        return;
    };
    let name = question.name.to_lowercase();
    let transfer = matches!(question.query_type, RecordType::AXFR | RecordType::IXFR);
    if question.query_class != DNSClass::IN || transfer || !zone.origin().zone_of(&name) {
        reply.metadata.response_code = ResponseCode::Refused;
        return;
    }
    reply.metadata.authoritative = true;
    let depth = usize::from(name.num_labels()) - usize::from(zone.origin().num_labels());
    let below: Vec<String> = name.iter().take(depth).map(|label| String::from_utf8_lossy(label).into_owned()).collect();
    let records = records(zone, &question.name, &below.join("."), question.query_type);
    match records {
        Some(records) if !records.is_empty() => reply.answers.extend(records),
        found => {
            if found.is_none() {
                reply.metadata.response_code = ResponseCode::NXDomain;
            }
            reply.authorities.push(soa(zone));
        }
    }
}

/// The records of that type of a name; none where there is no such name.
fn records(zone: &Zone, owner: &Name, below: &str, kind: RecordType) -> Option<Vec<Record>> {
    let any = kind == RecordType::ANY;
    let own = |address: IpAddr| record(owner, data(address));
    match below {
        "" => {
            let mut out = Vec::new();
            if any || kind == RecordType::SOA {
                out.push(soa(zone));
            }
            if zone.name_server().is_some() && (any || kind == RecordType::NS) {
                out.push(record(zone.origin(), RData::NS(NS(server(zone)))));
            }
            Some(out)
        }
        "ns" if zone.name_server().is_some() => {
            let address = zone.name_server().filter(|_| any || kind == RecordType::A);
            Some(address.map(|v4| own(v4.into())).into_iter().collect())
        }
        below => {
            let wanted =
                |address: &&IpAddr| any || kind == if address.is_ipv4() { RecordType::A } else { RecordType::AAAA };
            Some(zone.find(below)?.iter().filter(wanted).map(|address| own(*address)).collect())
        }
    }
}

fn data(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    }
}

fn record(owner: &Name, data: RData) -> Record {
    Record::from_rdata(owner.clone(), TTL, data)
}

fn server(zone: &Zone) -> Name {
    zone.origin().prepend_label("ns").unwrap_or_else(|_| zone.origin().clone())
}

/// Who answers for the zone, and how long it is believed.
fn soa(zone: &Zone) -> Record {
    let mail = zone.origin().prepend_label("email").unwrap_or_else(|_| zone.origin().clone());
    let soa = SOA::new(server(zone), mail, zone.serial(), REFRESH, REFRESH, EXPIRE, TTL);
    Record::from_rdata(zone.origin().clone(), TTL, RData::SOA(soa))
}

/// Within `limit`: what does not fit is asked again by TCP.
fn encode(mut reply: Message, limit: usize) -> Option<Vec<u8>> {
    let bytes = reply.to_vec().ok()?;
    if bytes.len() <= limit {
        return Some(bytes);
    }
    reply.metadata.truncation = true;
    reply.answers.clear();
    reply.authorities.clear();
    reply.additionals.clear();
    reply.to_vec().ok()
}

#[cfg(test)]
mod tests;
