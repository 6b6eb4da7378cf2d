//! Asking the host's name servers, one after the other, for as long as a client is likely to wait.

use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::answer::{MAX_DATAGRAM, Outcome, Pending, Transport, encode};

const PATIENCE: Duration = Duration::from_secs(2);

/// The finished reply; when nobody answers, one that says so.
pub(super) async fn resolve(resolvers: &[SocketAddr], pending: Box<Pending>, transport: Transport) -> Vec<u8> {
    let Pending { mut reply, question, limit } = *pending;
    let mut answered = None;
    for resolver in resolvers {
        let asking = ask(*resolver, &question, transport);
        match tokio::time::timeout(PATIENCE, asking).await {
            Ok(Ok(answer)) => {
                let knows = is_answer(&answer);
                if !knows {
                    tracing::debug!(%resolver, code = %answer.metadata.response_code, "name server cannot say");
                }
                // The first that could not say is believed when no other can.
                if knows || answered.is_none() {
                    answered = Some(answer);
                }
                if knows {
                    break;
                }
            }
            Ok(Err(error)) => tracing::debug!(%resolver, %error, "name server failed"),
            Err(_) => tracing::debug!(%resolver, "name server did not answer in time"),
        }
    }
    match answered {
        Some(answer) => {
            reply.metadata.response_code = answer.metadata.response_code;
            reply.metadata.truncation = answer.metadata.truncation;
            reply.metadata.authoritative = false;
            reply.answers.extend(answer.answers);
            reply.authorities.extend(answer.authorities);
            reply.additionals.extend(answer.additionals);
        }
        None => reply.metadata.response_code = ResponseCode::ServFail,
    }
    match encode(&reply, limit) {
        Outcome::Reply(bytes) => bytes,
        _ => Vec::new(),
    }
}

/// Whether a name server said something about the name, and not about itself.
fn is_answer(answer: &Message) -> bool {
    matches!(answer.metadata.response_code, ResponseCode::NoError | ResponseCode::NXDomain)
}

async fn ask(resolver: SocketAddr, question: &Query, transport: Transport) -> std::io::Result<Message> {
    // A fresh id and, by the fresh socket, a fresh port: together they keep forged answers out.
    let id = rand::random::<u16>();
    let mut query = Message::new(id, MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.queries.push(question.clone());
    let mut edns = Edns::new();
    edns.set_max_payload(u16::try_from(MAX_DATAGRAM).unwrap_or(u16::MAX));
    query.edns = Some(edns);
    let bytes = query.to_vec().map_err(std::io::Error::other)?;
    let belongs = |answer: &Message| {
        answer.metadata.id == id
            && answer.metadata.message_type == MessageType::Response
            && answer
                .queries
                .first()
                .is_some_and(|echo| echo.name == question.name && echo.query_type == question.query_type)
    };
    match transport {
        Transport::Datagram => {
            let any = if resolver.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).await?;
            socket.connect(resolver).await?;
            socket.send(&bytes).await?;
            let mut buffer = vec![0; MAX_DATAGRAM];
            loop {
                let length = socket.recv(&mut buffer).await?;
                match Message::from_vec(&buffer[..length]) {
                    Ok(answer) if belongs(&answer) => return Ok(answer),
                    _ => {}
                }
            }
        }
        Transport::Stream => {
            let mut stream = TcpStream::connect(resolver).await?;
            let length = u16::try_from(bytes.len()).map_err(std::io::Error::other)?;
            stream.write_all(&[&length.to_be_bytes(), bytes.as_slice()].concat()).await?;
            let length = stream.read_u16().await?;
            let mut buffer = vec![0; usize::from(length)];
            stream.read_exact(&mut buffer).await?;
            let answer = Message::from_vec(&buffer).map_err(std::io::Error::other)?;
            if belongs(&answer) { Ok(answer) } else { Err(std::io::Error::other("an answer to another question")) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hickory_proto::rr::rdata::A;
    use hickory_proto::rr::{Name, RData, Record, RecordType};

    use super::*;

    /// A name server on loopback that answers every query so, and counts them.
    async fn server(code: ResponseCode, asked: Arc<AtomicUsize>) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        kit::spawn("server", async move {
            let mut buffer = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
                asked.fetch_add(1, Ordering::Relaxed);
                let query = Message::from_vec(&buffer[..length]).unwrap();
                let mut reply = Message::response(query.metadata.id, OpCode::Query);
                reply.queries.clone_from(&query.queries);
                reply.metadata.response_code = code;
                if code == ResponseCode::NoError {
                    let address = RData::A(A("192.0.2.1".parse().unwrap()));
                    reply.answers.push(Record::from_rdata(query.queries[0].name.clone(), 60, address));
                }
                socket.send_to(&reply.to_vec().unwrap(), client).await.unwrap();
            }
        })
        .detach();
        address
    }

    /// What becomes of a query when the name servers answer so, and how many of them were asked.
    async fn check(codes: &[ResponseCode], expect: (ResponseCode, usize)) {
        let asked = Arc::new(AtomicUsize::new(0));
        let mut servers = Vec::new();
        for code in codes {
            servers.push(server(*code, asked.clone()).await);
        }
        let question = Query::query(Name::from_ascii("example.org.").unwrap(), RecordType::A);
        let mut reply = Message::response(7, OpCode::Query);
        reply.queries.push(question.clone());
        let pending = Box::new(Pending { reply, question, limit: 512 });
        let reply = Message::from_vec(&resolve(&servers, pending, Transport::Datagram).await).unwrap();
        assert_eq!((reply.metadata.response_code, asked.load(Ordering::Relaxed)), expect, "{codes:?}");
        assert_eq!(reply.metadata.id, 7);
    }

    #[tokio::test]
    async fn the_next_name_server_is_asked_when_one_cannot_say() {
        use ResponseCode::{NXDomain, NoError, Refused, ServFail};
        check(&[NoError, NoError], (NoError, 1)).await;
        check(&[ServFail, NoError], (NoError, 2)).await;
        check(&[Refused, ServFail], (Refused, 2)).await;
        check(&[NXDomain, NoError], (NXDomain, 1)).await;
        check(&[], (ServFail, 0)).await;
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What a name server sends is a message or noise.
        #[test]
        fn any_answer_of_a_name_server_is_a_message_or_dropped(bytes in proptest::collection::vec(any::<u8>(), 0..300), counts in proptest::collection::vec(0_u8..4, 8)) {
            // With counts of records that make the rest be read.
            let head = [vec![0, 7, 0x81, 0x80], counts].concat();
            for message in [bytes.clone(), [head, bytes].concat()] {
                if let Ok(answer) = Message::from_vec(&message) {
                    let _ = is_answer(&answer);
                    prop_assert!(answer.to_vec().is_err() || answer.queries.len() <= 300);
                }
            }
        }
    }
}
