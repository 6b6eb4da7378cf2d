//! From the bytes of a query to the bytes of a reply, or to the decision to ask somebody else. Pure.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use super::Settings;
use super::zone::{Entry, Zone};

/// Largest datagram that is read, and sent to a client that can take it.
pub const MAX_DATAGRAM: usize = 4096;

/// Seconds for which clients may keep an answer.
const TTL: u32 = 5;

/// Aliases followed within the cluster before giving up.
const MAX_ALIASES: usize = 8;

/// How the query came, which decides how long the reply may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP: at most what the client says it takes.
    Datagram,
    /// TCP: as long as it must be.
    Stream,
}

/// What to do about a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Send this.
    Reply(Vec<u8>),
    /// Ask the host's name servers.
    Forward(Box<Pending>),
    /// Not a query, or not readable enough to be answered.
    Silence,
}

/// A query that others must answer, with what is already known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The reply so far: question echoed, aliases followed.
    pub reply: Message,
    /// What is still to be asked.
    pub question: Query,
    /// Largest reply the client takes.
    pub limit: usize,
}

/// Answers `query`. `turn` rotates the addresses, so that clients that take the first spread over all.
pub fn answer(zone: Option<&Zone>, settings: &Settings, query: &[u8], transport: Transport, turn: usize) -> Outcome {
    let Ok(query) = Message::from_vec(query) else { return Outcome::Silence };
    if query.metadata.message_type != MessageType::Query {
        return Outcome::Silence;
    }
    let limit = match transport {
        Transport::Datagram => usize::from(query.max_payload()).clamp(512, MAX_DATAGRAM),
        Transport::Stream => usize::from(u16::MAX),
    };
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.queries.clone_from(&query.queries);
    if query.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(u16::try_from(MAX_DATAGRAM).unwrap_or(u16::MAX));
        reply.edns = Some(edns);
    }
    let refuse = |mut reply: Message, code| {
        reply.metadata.response_code = code;
        encode(&reply, limit)
    };
    if query.metadata.op_code != OpCode::Query {
        return refuse(reply, ResponseCode::NotImp);
    }
    let [question] = query.queries.as_slice() else { return refuse(reply, ResponseCode::FormErr) };
    if !matches!(question.query_class, DNSClass::IN | DNSClass::ANY) {
        return refuse(reply, ResponseCode::Refused);
    }
    let question = question.clone();
    if let Some(address) = reversed(&question.name).filter(|ip| settings.own_ranges.iter().any(|net| net.contains(ip)))
    {
        let Some(zone) = zone else { return refuse(reply, ResponseCode::ServFail) };
        return reverse(zone, &question, address, reply, limit);
    }
    lookup(zone, settings, question, reply, limit, turn)
}

fn lookup(
    zone: Option<&Zone>,
    settings: &Settings,
    mut question: Query,
    mut reply: Message,
    limit: usize,
    turn: usize,
) -> Outcome {
    for _ in 0..MAX_ALIASES {
        let name = plain(&question.name);
        if !is_below(&name, &settings.domain) {
            return Outcome::Forward(Box::new(Pending { reply, question, limit }));
        }
        let Some(zone) = zone else {
            reply.metadata.response_code = ResponseCode::ServFail;
            return encode(&reply, limit);
        };
        reply.metadata.authoritative = true;
        let Some(entry) = zone.find(&name) else {
            reply.metadata.response_code = ResponseCode::NXDomain;
            reply.authorities.extend(authority(zone));
            return encode(&reply, limit);
        };
        let alias = entry.alias.as_deref().and_then(|alias| Name::from_ascii(format!("{alias}.")).ok());
        if let Some(target) = alias {
            reply.answers.push(record(&question.name, RData::CNAME(CNAME(target.clone()))));
            if question.query_type == RecordType::CNAME {
                return encode(&reply, limit);
            }
            question.name = target;
            continue;
        }
        if name == zone.domain() && matches!(question.query_type, RecordType::SOA | RecordType::ANY) {
            reply.answers.extend(authority(zone));
            return encode(&reply, limit);
        }
        let mut records = records(&entry, question.query_type);
        if records.is_empty() {
            reply.authorities.extend(authority(zone));
        } else {
            let by = turn % records.len();
            records.rotate_left(by);
        }
        reply.answers.extend(records.into_iter().map(|data| record(&question.name, data)));
        for target in entry.services.iter().filter(|_| question.query_type == RecordType::SRV).map(|srv| &srv.target) {
            // Who asks for a service asks for its address next.
            let found = zone.find(target).unwrap_or_default();
            let Ok(name) = Name::from_ascii(format!("{target}.")) else { continue };
            let addresses = found.addresses.iter().map(|ip| record(&name, address(*ip)));
            reply.additionals.extend(addresses);
        }
        return encode(&reply, limit);
    }
    reply.metadata.response_code = ResponseCode::ServFail;
    encode(&reply, limit)
}

fn reverse(zone: &Zone, question: &Query, address: IpAddr, mut reply: Message, limit: usize) -> Outcome {
    reply.metadata.authoritative = true;
    match zone.reverse(address) {
        None => reply.metadata.response_code = ResponseCode::NXDomain,
        Some(names) if question.query_type == RecordType::PTR => {
            let names = names.iter().filter_map(|name| Name::from_ascii(format!("{name}.")).ok());
            reply.answers.extend(names.map(|name| record(&question.name, RData::PTR(PTR(name)))));
        }
        Some(_) => {}
    }
    if reply.answers.is_empty() {
        reply.authorities.extend(authority(zone));
    }
    encode(&reply, limit)
}

fn records(entry: &Entry, wanted: RecordType) -> Vec<RData> {
    let all = wanted == RecordType::ANY;
    let mut found = Vec::new();
    for ip in &entry.addresses {
        let kind = if ip.is_ipv4() { RecordType::A } else { RecordType::AAAA };
        if all || wanted == kind {
            found.push(address(*ip));
        }
    }
    if all || wanted == RecordType::SRV {
        let targets = entry.services.iter().filter_map(|srv| {
            let target = Name::from_ascii(format!("{}.", srv.target)).ok()?;
            Some(RData::SRV(SRV::new(0, 100, srv.port, target)))
        });
        found.extend(targets);
    }
    if all || wanted == RecordType::TXT {
        found.extend(entry.text.iter().map(|text| RData::TXT(TXT::new(vec![text.clone()]))));
    }
    found
}

fn address(ip: IpAddr) -> RData {
    match ip {
        IpAddr::V4(v4) => RData::A(A(v4)),
        IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
    }
}

fn record(name: &Name, data: RData) -> Record {
    Record::from_rdata(name.clone(), TTL, data)
}

/// What lets clients keep the knowledge that there is nothing.
fn authority(zone: &Zone) -> Option<Record> {
    let name = |prefix: &str| Name::from_ascii(format!("{prefix}{}.", zone.domain())).ok();
    let soa = SOA::new(name("ns.dns.")?, name("hostmaster.")?, 1, 7200, 1800, 86_400, TTL);
    Some(record(&name("")?, RData::SOA(soa)))
}

/// The reply within `limit`, cut short and marked so when it does not fit.
pub(super) fn encode(reply: &Message, limit: usize) -> Outcome {
    match reply.to_vec() {
        Ok(bytes) if bytes.len() <= limit => Outcome::Reply(bytes),
        Ok(_) => match reply.truncate().to_vec() {
            Ok(bytes) => Outcome::Reply(bytes),
            Err(_) => Outcome::Silence,
        },
        Err(_) => Outcome::Silence,
    }
}

/// Lower case, without the final dot.
fn plain(name: &Name) -> String {
    name.to_ascii().trim_end_matches('.').to_ascii_lowercase()
}

fn is_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The address in `5.0.244.10.in-addr.arpa` or its longer sister.
fn reversed(name: &Name) -> Option<IpAddr> {
    let name = plain(name);
    if let Some(labels) = name.strip_suffix(".in-addr.arpa") {
        let octets: Vec<&str> = labels.split('.').rev().collect();
        return octets.join(".").parse::<std::net::Ipv4Addr>().ok().map(IpAddr::V4);
    }
    let nibbles: Vec<&str> = name.strip_suffix(".ip6.arpa")?.split('.').rev().collect();
    if nibbles.len() != 32 || nibbles.iter().any(|nibble| nibble.len() != 1) {
        return None;
    }
    let number = u128::from_str_radix(&nibbles.concat(), 16).ok()?;
    Some(IpAddr::V6(number.into()))
}

#[cfg(test)]
mod tests;
