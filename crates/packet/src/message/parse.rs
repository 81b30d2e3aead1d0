//! Parses messages.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use tradewind_fec::{LENGTH_BYTES, MAX_REPAIRS, Members};
use tradewind_grant::PublicIdentity;

use super::members::{MEMBER_BYTES, MemberList};
use super::ranges::{RANGE_BYTES, Ranges};
use super::write::kind;
use super::{
    ACKNOWLEDGED_WORDS, Acknowledgement, Carriage, Class, Collect, Deposit, Deposited, Feedback,
    HelpRequest, MAX_PAYLOAD_BYTES, MAX_SEQUENCE, Message, MessageError, Nack, NearList,
    RecoverySource, Refusal, Remaining, Repair, Report, Scope, Service, Source, StoredMessage,
};
use crate::fragment::{MAX_PIECES, Piece};
use crate::group::{KEY_BYTES, Secret};
use crate::id::{FlowNumber, PacketId};

impl<'a> Message<'a> {
    /// Parses a message that fills `bytes`.
    ///
    /// # Errors
    /// When the bytes are no message of this version; the error names the field.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let mut reader = Reader { bytes, at: 0 };
        let kind = reader.byte("kind")?;
        let message = match kind >> 4 {
            2 => path_message(kind, &mut reader)?,
            3 => conversation_message(kind, &mut reader)?,
            5 => membership_message(kind, &mut reader)?,
            6 => rendezvous_message(kind, &mut reader)?,
            _ => service_message(kind, &mut reader)?,
        };
        match bytes.len() - reader.at {
            0 => Ok(message),
            more => Err(MessageError::Trailing(more)),
        }
    }
}

fn path_message<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<Message<'a>, MessageError> {
    let label = reader.word("label")?;
    match kind {
        kind::ON_PATH => Ok(Message::OnPath { label, datagram: reader.rest() }),
        kind::OPEN => Ok(Message::Open { label, header: reader.rest() }),
        kind::OPENED => Ok(Message::Opened { label, next: reader.word("next")? }),
        kind::REFUSED => {
            let by = identity(reader)?;
            Ok(Message::Refused { label, by, reason: refusal(reader)? })
        }
        kind::SERVE | kind::JOIN => {
            let flow = FlowNumber(reader.number("flow")?);
            let service = service(reader)?;
            Ok(match kind {
                kind::SERVE => Message::Serve { label, flow, service },
                _ => Message::Join { label, flow, service },
            })
        }
        kind::BILL => Ok(Message::Bill {
            label,
            flow: FlowNumber(reader.number("flow")?),
            is_egress: reader.flag("egress")?,
            bytes: reader.number("bytes")?,
            nano_usd: reader.number("nano-dollars")?,
        }),
        other => Err(MessageError::Kind(other)),
    }
}

fn conversation_message<'a>(
    kind: u8,
    reader: &mut Reader<'a>,
) -> Result<Message<'a>, MessageError> {
    match kind {
        kind::NUMBERED => {
            return Ok(Message::Numbered { packet: reader.packet()?, message: reader.rest() });
        }
        kind::GROUP_KEY | kind::GROUP_KNOWN => return group_message(kind, reader),
        _ => {}
    }
    let conversation = reader.word("conversation")?;
    match kind {
        kind::DATAGRAM => Ok(Message::Datagram { conversation, payload: reader.rest() }),
        kind::FRAGMENT => Ok(Message::Fragment { conversation, piece: piece(reader)? }),
        kind::FIRST | kind::FIRST_FROM | kind::BEGIN | kind::BEGIN_FROM => {
            let service = service(reader)?;
            let flags = reader.byte("carriage")?;
            let budget_ms = reader.half_word("budget")?;
            let to = address(reader)?;
            let has_source = matches!(kind, kind::FIRST_FROM | kind::BEGIN_FROM);
            let from = if has_source { Some(address(reader)?) } else { None };
            let carriage = Carriage::of_flags(service, flags, budget_ms);
            let Some(carriage) = carriage else {
                return refuse("carriage", flags, "three bits");
            };
            if matches!(kind, kind::BEGIN | kind::BEGIN_FROM) {
                return Ok(Message::Begin { conversation, carriage, to, from });
            }
            Ok(Message::First { conversation, carriage, to, from, payload: reader.rest() })
        }
        kind::KNOWN => Ok(Message::Known { conversation }),
        kind::UNKNOWN => Ok(Message::Unknown { conversation }),
        kind::OVER => Ok(Message::Over { conversation }),
        kind::DENIED => Ok(Message::Denied { conversation, reason: refusal(reader)? }),
        other => Err(MessageError::Kind(other)),
    }
}

fn piece<'a>(reader: &mut Reader<'a>) -> Result<Piece<'a>, MessageError> {
    let (datagram, index) = (reader.word("datagram")?, reader.byte("index")?);
    let (count, bytes) = (reader.byte("count")?, reader.rest());
    if !(2..=MAX_PIECES).contains(&count) {
        return refuse("count", count, "2 to 64 pieces");
    }
    if index >= count {
        return refuse("index", index, "less than the count");
    }
    if bytes.is_empty() {
        return refuse("piece", 0_u64, "at least a byte");
    }
    Ok(Piece { datagram, index, count, bytes })
}

fn group_message<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<Message<'a>, MessageError> {
    let (flow, epoch) = (FlowNumber(reader.number("flow")?), reader.byte("epoch")?);
    if kind == kind::GROUP_KNOWN {
        return Ok(Message::GroupKnown { flow, epoch, is_served: reader.flag("is served")? });
    }
    let key = reader.take(KEY_BYTES, "key")?.try_into().expect("as many bytes as a key has");
    Ok(Message::GroupKey { flow, epoch, key: Secret(key) })
}

fn membership_message<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<Message<'a>, MessageError> {
    Ok(match kind {
        kind::REGISTER => Message::Register { near: near(reader)? },
        kind::REGISTERED => Message::Registered { seconds: reader.half_word("seconds")? },
        kind::LOOK_UP => Message::LookUp { identity: identity(reader)? },
        kind::MEMBER => Message::Member {
            identity: identity(reader)?,
            address: address(reader)?,
            near: near(reader)?,
        },
        other => return Err(MessageError::Kind(other)),
    })
}

fn rendezvous_message<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<Message<'a>, MessageError> {
    Ok(match kind {
        kind::DEPOSIT => Message::Deposit(Deposit {
            stream: reader.number("stream")?,
            begins: reader.flag("begins")?,
            number: reader.place("deposit number")?,
            keep_s: reader.word("seconds")?,
            to: identity(reader)?,
            stored_message: payload(reader)?,
        }),
        kind::DEPOSITED => Message::Deposited(Deposited {
            epoch: reader.number("epoch")?,
            stream: reader.number("stream")?,
            is_known: reader.flag("is known")?,
            seen: acknowledgement(reader)?,
        }),
        kind::COLLECT => Message::Collect(Collect {
            epoch: reader.number("epoch")?,
            ask: reader.number("ask")?,
            credit: reader.half_word("credit")?,
            seen: acknowledgement(reader)?,
        }),
        kind::STORED_MESSAGE => {
            let (epoch, since) = (reader.number("epoch")?, reader.place("since")?);
            let position = reader.place("position")?;
            if since > position {
                return refuse("since", since, "at most the position");
            }
            Message::StoredMessage(StoredMessage {
                epoch,
                since,
                position,
                stored_message: payload(reader)?,
            })
        }
        kind::REMAINING => Message::Remaining(Remaining {
            epoch: reader.number("epoch")?,
            ask: reader.number("ask")?,
            left: reader.word("left")?,
        }),
        other => return Err(MessageError::Kind(other)),
    })
}

fn identity(reader: &mut Reader<'_>) -> Result<PublicIdentity, MessageError> {
    Ok(PublicIdentity::from_bytes(reader.array("identity")?))
}

fn near<'a>(reader: &mut Reader<'a>) -> Result<NearList<'a>, MessageError> {
    let entries = reader.rest();
    match NearList::of(entries) {
        Some(near) => Ok(near),
        None => refuse("near relays", entries.len() as u64, "54 bytes for each, at most 4"),
    }
}

fn address(reader: &mut Reader<'_>) -> Result<SocketAddr, MessageError> {
    let ip = Ipv6Addr::from(reader.array::<16>("address")?);
    Ok(SocketAddr::new(IpAddr::V6(ip).to_canonical(), reader.half_word("port")?))
}

fn service_message<'a>(kind: u8, reader: &mut Reader<'a>) -> Result<Message<'a>, MessageError> {
    Ok(match kind {
        kind::SOURCE => Message::Source(source(reader)?),
        kind::COPY => {
            let number = reader.place("copy number")?;
            Message::Copy { number, source: source(reader)? }
        }
        kind::REPAIR => Message::Repair(repair(reader)?),
        kind::NACK => Message::Nack(nack(reader)?),
        kind::HELP_REQUEST => Message::HelpRequest(help_request(reader)?),
        kind::HELP_ANSWER => {
            let request = help_request(reader)?;
            Message::HelpAnswer { request, payload: payload(reader)? }
        }
        kind::RECOVERED => {
            let means = match reader.byte("means")? {
                0 => RecoverySource::Cache,
                1 => RecoverySource::CrossStream,
                other => return refuse("means", other, "0 or 1"),
            };
            let packet = reader.packet()?;
            Message::Recovered { packet, means, payload: payload(reader)? }
        }
        kind::ACKNOWLEDGEMENT => Message::Acknowledgement(acknowledgement(reader)?),
        kind::FEEDBACK => Message::Feedback(feedback(reader)?),
        kind::PRESENCE => {
            let flow = FlowNumber(reader.number("flow")?);
            Message::Presence { flow, is_online: reader.flag("is online")? }
        }
        kind::KEEPALIVE => {
            let is_answer = reader.flag("is answer")?;
            Message::Keepalive { is_answer, nonce: reader.number("nonce")? }
        }
        other => return Err(MessageError::Kind(other)),
    })
}

fn acknowledgement(reader: &mut Reader<'_>) -> Result<Acknowledgement, MessageError> {
    let next = reader.place("next")?;
    let mut beyond = [0; ACKNOWLEDGED_WORDS];
    for word in &mut beyond {
        *word = reader.number("beyond")?;
    }
    Ok(Acknowledgement { next, beyond })
}

fn service(reader: &mut Reader<'_>) -> Result<Service, MessageError> {
    let service = reader.byte("service")?;
    match Service::ALL.get(usize::from(service)) {
        Some(service) => Ok(*service),
        None => refuse("service", service, "0 to 3"),
    }
}

fn refusal(reader: &mut Reader<'_>) -> Result<Refusal, MessageError> {
    let reason = reader.byte("reason")?;
    match Refusal::ALL.get(usize::from(reason)) {
        Some(reason) => Ok(*reason),
        None => refuse("reason", reason, "0 to 6"),
    }
}

fn refuse<T>(
    field: &'static str,
    value: impl Into<u64>,
    expected: &'static str,
) -> Result<T, MessageError> {
    Err(MessageError::Field { field, value: value.into(), expected })
}

fn source<'a>(reader: &mut Reader<'a>) -> Result<Source<'a>, MessageError> {
    let service = service(reader)?;
    let class = match reader.byte("class")? {
        0 => Class::Normal,
        1 => Class::High,
        other => return refuse("class", other, "0 or 1"),
    };
    Ok(Source { packet: reader.packet()?, service, class, payload: payload(reader)? })
}

fn repair<'a>(reader: &mut Reader<'a>) -> Result<Repair<'a>, MessageError> {
    let scope = match reader.byte("scope")? {
        0 => Scope::CrossStream,
        1 => Scope::InStream,
        other => return refuse("scope", other, "0 or 1"),
    };
    let (row, rows) = (reader.byte("row")?, reader.byte("rows")?);
    if usize::from(rows) > MAX_REPAIRS || row >= rows {
        return refuse("rows", rows, "more than the row, at most 8");
    }
    let columns = Members::from_bits(reader.word("columns")?);
    if columns.is_empty() {
        return refuse("columns", 0_u64, "one column or more");
    }
    let block = reader.number("block")?;
    let entries = reader.take(columns.len() * MEMBER_BYTES, "members")?;
    let members = MemberList::new(columns, entries);
    check_members(scope, &members)?;
    let symbol = reader.rest();
    if symbol.len() <= LENGTH_BYTES || symbol.len() > LENGTH_BYTES + MAX_PAYLOAD_BYTES {
        return refuse("symbol", symbol.len() as u64, "3 to 9002 bytes");
    }
    Ok(Repair { scope, row, rows, block, members, symbol })
}

/// Checks a block's packets: cross-stream blocks hold at most one packet of a flow, in-stream
/// blocks different packets of one flow, and all sequences must be allowed in messages of their
/// own.
fn check_members(scope: Scope, members: &MemberList<'_>) -> Result<(), MessageError> {
    let first = members.packets().next().map(|packet| packet.flow);
    for (index, packet) in members.packets().enumerate() {
        check_sequence(packet.sequence)?;
        let mut before = members.packets().take(index);
        let is_wrong = match scope {
            Scope::CrossStream => before.any(|other| other.flow == packet.flow),
            Scope::InStream => {
                Some(packet.flow) != first || before.any(|other| other.sequence == packet.sequence)
            }
        };
        if is_wrong {
            let expected = match scope {
                Scope::CrossStream => "a flow that no other member has",
                Scope::InStream => "the flow of all members, and a sequence that no other has",
            };
            return refuse("member", index as u64, expected);
        }
    }
    Ok(())
}

fn nack<'a>(reader: &mut Reader<'a>) -> Result<Nack<'a>, MessageError> {
    let flow = FlowNumber(reader.number("flow")?);
    let bytes = reader.rest();
    if !bytes.len().is_multiple_of(RANGE_BYTES) {
        return refuse("ranges", bytes.len() as u64, "9 bytes for each");
    }
    let ranges = Ranges::unchecked(bytes);
    match ranges.check() {
        Ok(()) => Ok(Nack { flow, ranges }),
        Err((value, expected)) => refuse("ranges", value, expected),
    }
}

fn help_request(reader: &mut Reader<'_>) -> Result<HelpRequest, MessageError> {
    Ok(HelpRequest { recovery: reader.number("recovery")?, packet: reader.packet()? })
}

fn feedback(reader: &mut Reader<'_>) -> Result<Report, MessageError> {
    let flow = FlowNumber(reader.number("flow")?);
    let begun = reader.number("begun")?;
    let sums = Feedback {
        flow,
        expected: reader.number("expected")?,
        in_time: reader.number("in time")?,
        late: reader.number("late")?,
        lost_by_internet: reader.number("lost by the Internet")?,
        recovered: [
            reader.number("recovered: kept")?,
            reader.number("recovered: in-stream")?,
            reader.number("recovered: cross-stream")?,
        ],
    };
    if let Some(most) = sums.exceeding() {
        return refuse("in time and late, lost, recovered", most, "at most what was expected");
    }
    Ok(Report { begun, sums })
}

fn payload<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], MessageError> {
    let payload = reader.rest();
    if payload.is_empty() || payload.len() > MAX_PAYLOAD_BYTES {
        return refuse("payload", payload.len() as u64, "1 to 9000 bytes");
    }
    Ok(payload)
}

/// Reads fields from the front of a message.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize, field: &'static str) -> Result<&'a [u8], MessageError> {
        let found = self.bytes.len();
        let end = self.at.checked_add(count).filter(|end| *end <= found);
        let end = end.ok_or(MessageError::Truncated { found, field })?;
        let read = &self.bytes[self.at..end];
        self.at = end;
        Ok(read)
    }

    fn rest(&mut self) -> &'a [u8] {
        let read = &self.bytes[self.at..];
        self.at = self.bytes.len();
        read
    }

    fn byte(&mut self, field: &'static str) -> Result<u8, MessageError> {
        Ok(self.take(1, field)?[0])
    }

    fn flag(&mut self, field: &'static str) -> Result<bool, MessageError> {
        match self.byte(field)? {
            0 => Ok(false),
            1 => Ok(true),
            other => refuse(field, other, "0 or 1"),
        }
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], MessageError> {
        Ok(self.take(N, field)?.try_into().expect("as many bytes as were asked for"))
    }

    fn half_word(&mut self, field: &'static str) -> Result<u16, MessageError> {
        Ok(u16::from_be_bytes(self.array(field)?))
    }

    fn word(&mut self, field: &'static str) -> Result<u32, MessageError> {
        Ok(u32::from_be_bytes(self.array(field)?))
    }

    fn number(&mut self, field: &'static str) -> Result<u64, MessageError> {
        Ok(u64::from_be_bytes(self.array(field)?))
    }

    fn packet(&mut self) -> Result<PacketId, MessageError> {
        let flow = FlowNumber(self.number("flow")?);
        Ok(PacketId { flow, sequence: self.place("sequence")? })
    }

    /// Reads a number that counts something.
    fn place(&mut self, field: &'static str) -> Result<u64, MessageError> {
        match self.number(field)? {
            place @ 0..=MAX_SEQUENCE => Ok(place),
            beyond => refuse(field, beyond, "below 2^63"),
        }
    }
}

/// Refuses sequences from 2^63 on: they are never reached, and arithmetic on others cannot
/// overflow.
fn check_sequence(sequence: u64) -> Result<(), MessageError> {
    if sequence > MAX_SEQUENCE {
        return refuse("sequence", sequence, "below 2^63");
    }
    Ok(())
}
