//! Asking the host's name servers, one after the other, for as long as a client is likely to wait.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::answer::{MAX_DATAGRAM, Outcome, Pending, Transport, encode};

const PATIENCE: Duration = Duration::from_secs(2);

/// The finished reply; when nobody answers, one that says so.
pub(super) async fn resolve(resolvers: &[IpAddr], pending: Box<Pending>, transport: Transport) -> Vec<u8> {
    let Pending { mut reply, question, limit } = *pending;
    let mut answered = None;
    for resolver in resolvers {
        let asking = ask(SocketAddr::new(*resolver, super::PORT), &question, transport);
        match tokio::time::timeout(PATIENCE, asking).await {
            Ok(Ok(answer)) => {
                answered = Some(answer);
                break;
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
