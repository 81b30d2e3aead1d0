//! Records of the packet plane in the logs of the process, which are also those of streams.

use std::sync::Arc;

use tradewind_grant::OpenHeader;
use tradewind_node::{ConversationRecord, Journal};
use tradewind_stream::access_log::{AccessLog, AuditLog};

/// The logs of a process, if there are any.
#[derive(Debug)]
pub(crate) struct Logs {
    pub(crate) access: Option<Arc<AccessLog>>,
    pub(crate) audit: Option<Arc<AuditLog>>,
}

impl Journal for Logs {
    fn conversation_ended(&self, record: &ConversationRecord) -> bool {
        let Some(log) = &self.access else { return false };
        log.tell_fields(record.outcome.is_in_order(), || {
            let mut fields = match serde_json::to_value(record) {
                Ok(serde_json::Value::Object(fields)) => fields,
                // No record is anything else.
                Ok(_) | Err(_) => serde_json::Map::new(),
            };
            fields.insert("kind".to_owned(), "packets".into());
            fields
        })
    }

    fn path_opened(&self, header: &OpenHeader) {
        self.audit.iter().for_each(|log| log.tell_of_path(header));
    }

    fn flush(&self) {
        self.access.iter().for_each(|log| log.flush());
        self.audit.iter().for_each(|log| log.flush());
    }
}

impl Logs {
    /// Returns true if there is any.
    pub(crate) const fn are_some(&self) -> bool {
        self.access.is_some() || self.audit.is_some()
    }
}
