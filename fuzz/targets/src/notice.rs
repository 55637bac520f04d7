//! Immediate data: every 32 bits are refused, or a notice that writes the same bits; never a panic.

use proto_common::batch::{Notice, SlotGrant};
use proto_common::limits::INBOX_SLOTS_MAX;

crate::target!(|wire: u32| {
    if let Some(notice) = Notice::from_wire(wire) {
        assert_eq!(notice.to_wire(), wire);
        if let Notice::Batch(grant) | Notice::Returned(grant) | Notice::GivenBack(grant) = notice {
            assert!((grant.slot as usize) < INBOX_SLOTS_MAX);
        }
    }
    let grant = SlotGrant::from_wire(wire);
    assert!(grant.is_none_or(|grant| grant.to_wire() == wire));
    assert_eq!(grant.map(Notice::Batch), Notice::from_wire(wire).filter(|n| matches!(n, Notice::Batch(_))));
});
