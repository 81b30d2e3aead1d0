//! Bytes to messages.

use tradewind_fec::{LENGTH_BYTES, MOST_REPAIRS, Members};

use super::members::{MEMBER_BYTES, MemberList};
use super::ranges::{RANGE_BYTES, Ranges};
use super::write::kind;
use super::{
    ACKNOWLEDGED_WORDS, Acknowledgement, Class, Feedback, HelpRequest, MOST_PAYLOAD_BYTES, Means,
    Message, MessageError, Nack, Repair, Scope, Service, Source, VERSION,
};
use crate::id::{FlowNumber, PacketId};

impl<'a> Message<'a> {
    /// Reads a message that fills `bytes`.
    ///
    /// # Errors
    /// When the bytes are no message of this version; the error names the field.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let mut reader = Reader { bytes, at: 0 };
        let version = reader.byte("version")?;
        if version != VERSION {
            return Err(MessageError::Version(version));
        }
        let message = match reader.byte("kind")? {
            kind::SOURCE => Self::Source(source(&mut reader)?),
            kind::COPY => {
                let number = reader.number("copy number")?;
                if number > MOST_SEQUENCE {
                    return refuse("copy number", number, "below 2^63");
                }
                Self::Copy { number, source: source(&mut reader)? }
            }
            kind::REPAIR => Self::Repair(repair(&mut reader)?),
            kind::NACK => Self::Nack(nack(&mut reader)?),
            kind::HELP_REQUEST => Self::HelpRequest(help_request(&mut reader)?),
            kind::HELP_ANSWER => {
                let request = help_request(&mut reader)?;
                Self::HelpAnswer { request, payload: payload(&mut reader)? }
            }
            kind::RECOVERED => {
                let means = match reader.byte("means")? {
                    0 => Means::Cache,
                    1 => Means::CrossStream,
                    other => return refuse("means", other, "0 or 1"),
                };
                let packet = reader.packet()?;
                Self::Recovered { packet, means, payload: payload(&mut reader)? }
            }
            kind::ACKNOWLEDGEMENT => {
                let next = reader.number("next")?;
                let mut beyond = [0; ACKNOWLEDGED_WORDS];
                for word in &mut beyond {
                    *word = reader.number("beyond")?;
                }
                if next > MOST_SEQUENCE {
                    return refuse("next", next, "below 2^63");
                }
                Self::Acknowledgement(Acknowledgement { next, beyond })
            }
            kind::FEEDBACK => Self::Feedback(feedback(&mut reader)?),
            kind::PRESENCE => {
                let flow = FlowNumber(reader.number("flow")?);
                Self::Presence { flow, is_online: reader.flag("is online")? }
            }
            kind::KEEPALIVE => {
                let is_answer = reader.flag("is answer")?;
                Self::Keepalive { is_answer, nonce: reader.number("nonce")? }
            }
            other => return Err(MessageError::Kind(other)),
        };
        match bytes.len() - reader.at {
            0 => Ok(message),
            more => Err(MessageError::Trailing(more)),
        }
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
    let service = reader.byte("service")?;
    let Some(service) = Service::ALL.get(usize::from(service)).copied() else {
        return refuse("service", service, "0 to 3");
    };
    let class = match reader.byte("class")? {
        0 => Class::Usual,
        1 => Class::Vital,
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
    if usize::from(rows) > MOST_REPAIRS || row >= rows {
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
    if symbol.len() <= LENGTH_BYTES || symbol.len() > LENGTH_BYTES + MOST_PAYLOAD_BYTES {
        return refuse("symbol", symbol.len() as u64, "3 to 9002 bytes");
    }
    Ok(Repair { scope, row, rows, block, members, symbol })
}

/// Cross-stream blocks hold a packet of a flow at most, in-stream blocks different packets of one.
fn check_members(scope: Scope, members: &MemberList<'_>) -> Result<(), MessageError> {
    let first = members.packets().next().map(|packet| packet.flow);
    for (index, packet) in members.packets().enumerate() {
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

fn feedback(reader: &mut Reader<'_>) -> Result<Feedback, MessageError> {
    let told = Feedback {
        flow: FlowNumber(reader.number("flow")?),
        expected: reader.number("expected")?,
        in_time: reader.number("in time")?,
        lost_by_internet: reader.number("lost by the Internet")?,
    };
    let most = told.in_time.max(told.lost_by_internet);
    if most > told.expected {
        return refuse("in time, lost by the Internet", most, "at most what was expected");
    }
    Ok(told)
}

fn payload<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], MessageError> {
    let payload = reader.rest();
    if payload.is_empty() || payload.len() > MOST_PAYLOAD_BYTES {
        return refuse("payload", payload.len() as u64, "1 to 9000 bytes");
    }
    Ok(payload)
}

/// Takes fields from the front.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize, field: &'static str) -> Result<&'a [u8], MessageError> {
        let found = self.bytes.len();
        let end = self.at.checked_add(count).filter(|end| *end <= found);
        let end = end.ok_or(MessageError::Truncated { found, field })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn rest(&mut self) -> &'a [u8] {
        let taken = &self.bytes[self.at..];
        self.at = self.bytes.len();
        taken
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

    fn word(&mut self, field: &'static str) -> Result<u32, MessageError> {
        Ok(u32::from_be_bytes(self.take(4, field)?.try_into().expect("4 bytes")))
    }

    fn number(&mut self, field: &'static str) -> Result<u64, MessageError> {
        Ok(u64::from_be_bytes(self.take(8, field)?.try_into().expect("8 bytes")))
    }

    fn packet(&mut self) -> Result<PacketId, MessageError> {
        let flow = FlowNumber(self.number("flow")?);
        let sequence = self.number("sequence")?;
        // Sequences near the end of 64 bits are never reached; arithmetic on them must not overflow.
        if sequence > MOST_SEQUENCE {
            return refuse("sequence", sequence, "below 2^63");
        }
        Ok(PacketId { flow, sequence })
    }
}

/// Largest sequence that is taken: at a million packets a second it lasts 290,000 years.
const MOST_SEQUENCE: u64 = (1 << 63) - 1;
