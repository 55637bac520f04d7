//! Control messages of every direction: any bytes are refused, or decode to what keeps its meaning when it is
//! encoded again; never a panic.

use proto_common::message::{
    FromKeeper, FromScheduler, FromServer, Message, ToKeeper, ToScheduler, ToServer, decode, encode,
};

crate::target!(|data: &[u8]| {
    let Some((which, bytes)) = data.split_first() else { return };
    match which % 6 {
        0 => round_trip::<ToScheduler>(bytes),
        1 => round_trip::<FromScheduler>(bytes),
        2 => round_trip::<ToServer>(bytes),
        3 => round_trip::<FromServer>(bytes),
        4 => round_trip::<ToKeeper>(bytes),
        _ => round_trip::<FromKeeper>(bytes),
    }
});

fn round_trip<T: Message>(bytes: &[u8]) {
    let Ok(message) = decode::<T>(bytes) else { return };
    let once = encode(&message).expect("what was decoded can be encoded");
    let again: T = decode(&once).expect("what was encoded can be decoded");
    assert_eq!(encode(&again).as_deref(), Ok(once.as_slice()));
}
