//! A data connection with another member.

use crate::socket::Socket;
use ringfold_plan::executor::Verdict;
use ringfold_plan::medium::Ticket;
use ringfold_proto::data_header::DataHeader;
use ringfold_proto::frame::{LinkDecoder, LinkItem, encode_data_head, encode_link};
use ringfold_proto::link_message::LinkMessage;
use std::io;

/// A link.
pub struct Link {
    pub socket: Socket,
    decoder: LinkDecoder,
    incoming: Option<Incoming>,
}

/// A frame whose payload has not arrived in full.
struct Incoming {
    header: DataHeader,
    is_wanted: bool,
    payload: Vec<u8>,
    have: usize,
}

/// What arrived, in the order of the link.
pub enum Arrival {
    /// A frame for a slot.
    Frame(DataHeader, Vec<u8>),
    /// A frame that nobody needs; its payload was thrown away.
    Discarded(DataHeader),
    /// A message.
    Message(LinkMessage),
}

impl Link {
    /// A link on an established connection.
    pub fn new(socket: Socket) -> Self {
        Self { socket, decoder: LinkDecoder::default(), incoming: None }
    }

    /// Queues a frame.
    pub fn put(&mut self, header: &DataHeader, payload: Vec<u8>, ticket: Ticket) {
        let head = encode_data_head(header).expect("the executor's frames are within the bounds");
        self.socket.send_put(&head, payload, ticket);
    }

    /// Queues a message.
    pub fn say(&mut self, message: &LinkMessage) {
        self.socket.send(encode_link(message).expect("the executor's messages are within the bounds"));
    }

    /// The next arrival, if one is complete. Frames are judged by their headers, before their payload is
    /// read; payloads are read straight to where they stay.
    pub fn next(&mut self, judge: impl Fn(&DataHeader) -> Verdict) -> io::Result<Option<Arrival>> {
        loop {
            if let Some(incoming) = &mut self.incoming {
                if !incoming.advance(&mut self.socket, &mut self.decoder)? {
                    return Ok(None);
                }
                return Ok(self.incoming.take().map(Incoming::arrival));
            }
            let decoder = &mut self.decoder;
            let item = self.socket.take(|input| decoder.next_item(input));
            match item.map_err(io::Error::other)? {
                Some(LinkItem::Message(message)) => return Ok(Some(Arrival::Message(message))),
                Some(LinkItem::Data(header)) => {
                    let is_wanted = match judge(&header) {
                        Verdict::Place => true,
                        Verdict::Discard => false,
                        Verdict::Violation(why) => return Err(io::Error::other(why)),
                    };
                    let payload = vec![0; header.length as usize];
                    self.incoming = Some(Incoming { header, is_wanted, payload, have: 0 });
                }
                None if self.socket.fill()? => {}
                None => return Ok(None),
            }
        }
    }
}

impl Incoming {
    /// Takes what has arrived. Says whether the payload is complete.
    fn advance(&mut self, socket: &mut Socket, decoder: &mut LinkDecoder) -> io::Result<bool> {
        if socket.has_input() {
            let have = &mut self.have;
            let payload = &mut self.payload;
            socket.take(|input| {
                let part = decoder.take_payload(input);
                payload[*have..*have + part.len()].copy_from_slice(part);
                *have += part.len();
            });
        }
        while decoder.payload_bytes() > 0 {
            let bytes = socket.read_into(&mut self.payload[self.have..])?;
            if bytes == 0 {
                return Ok(false);
            }
            decoder.skip_payload(bytes);
            self.have += bytes;
        }
        Ok(true)
    }

    fn arrival(self) -> Arrival {
        if self.is_wanted {
            Arrival::Frame(self.header, self.payload)
        } else {
            Arrival::Discarded(self.header)
        }
    }
}
