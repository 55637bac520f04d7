//! Whom to ask about rows of tables: the servers of their homes. It must not know what is asked.

use super::call::{CallHandle, CallReply, CallRequest};
use super::home::{Home, Homes};
use super::state::Client;
use super::{Handle, Tensor};
use crate::call_fault::CallFault;
use crate::error::{ClientError, OpError};
use fabric::lock;
use proto_common::batch::OpKind;
use proto_common::ids::ChunkId;
use proto_common::message::Coming;
use proto_common::table::{RowStatus, Spread, home_of, table_app};
use proto_common::tensor::TensorSpec;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two questions about rows that nobody serves at the moment.
const PAUSE: Duration = Duration::from_millis(5);

impl Client {
    /// The homes, declared with the first table.
    pub(super) fn homes(&self) -> Result<Arc<Homes>, ClientError> {
        let mut known = lock(&self.0.homes);
        if let Some(homes) = &*known {
            return Ok(homes.clone());
        }
        let spread = Spread { servers: self.servers(), lanes: self.0.shape.lanes };
        let specs: Vec<TensorSpec> =
            (0..spread.parts()).map(|part| spread.home_spec(part, self.0.shape.chunk_bytes)).collect();
        let tensors = self.declare_any(&specs)?;
        self.go_on_counting(&tensors)?;
        let lane_of =
            |tensor: &Tensor| self.0.members.with_map(|map| map.lane_of(ChunkId::new(tensor.key().0, 0)));
        let home = |tensor: Tensor| {
            let lane = lane_of(&tensor).unwrap_or_default();
            Home::new(tensor, lane)
        };
        let parts = tensors.into_iter().map(home).collect();
        let homes = Arc::new(Homes::new(spread, parts));
        *known = Some(homes.clone());
        Ok(homes)
    }

    /// An earlier process of this rank may have contributed to homes. This client's contributions are numbered after those.
    fn go_on_counting(&self, homes: &[Tensor]) -> Result<(), ClientError> {
        if self.coming() == Coming::Between {
            return Ok(());
        }
        let tell = |tensor: &Tensor| self.tell(tensor, OpKind::Release);
        let asked = homes.iter().map(tell).collect::<Result<Vec<Handle>, _>>()?;
        for (home, asked) in homes.iter().zip(asked) {
            let made = asked.wait()?.version.0;
            home.numbers().go_on_after(made, false);
        }
        Ok(())
    }

    /// Waits until what this client has contributed to these homes is in force, so that its pulls see it.
    pub(super) fn settle_homes<'a>(&self, homes: impl Iterator<Item = &'a Home>) -> Result<(), ClientError> {
        let open = homes.filter(|home| home.is_open());
        let asked: Vec<Handle> =
            open.map(|home| self.tell(&home.tensor, OpKind::Release)).collect::<Result<_, _>>()?;
        asked.into_iter().try_for_each(|asked| asked.wait().map(drop))
    }

    /// Asks whoever the map says serves a home.
    pub(super) fn ask_home(
        &self,
        key: u32,
        home: &Home,
        request: CallRequest,
    ) -> Result<CallHandle, ClientError> {
        let server = self.0.members.with_map(|map| map.server_of(home.id())).flatten();
        let closed = || ClientError::from(OpError::Closed("it was closed by this process".into()));
        self.call_any(table_app(key, home.lane), server.ok_or_else(closed)?.0, request)
    }

    /// As [`Client::ask_home`], until somebody answers who serves the home.
    pub(super) fn answer_of_home(
        &self,
        key: u32,
        home: &Home,
        request: impl Fn() -> Result<CallRequest, ClientError>,
    ) -> Result<CallReply, ClientError> {
        let until = Instant::now() + Duration::from_millis(u64::from(self.operation_ms()));
        loop {
            let result = self.ask_home(key, home, request()?)?.wait();
            if !is_elsewhere(&result) {
                return result;
            }
            if Instant::now() >= until {
                let part = home_of(home.tensor.key()).unwrap_or_default();
                let reason = format!(
                    "no server answers for its rows of part {part}, which the shard map assigns to {:?}; check the log of that server, and whether its replicas are reachable (`gradwire status`)",
                    self.0.members.with_map(|map| map.server_of(home.id())).flatten()
                );
                return Err(ClientError::Table { key, reason });
            }
            // Sleep: no event says when somebody serves it. A server may be behind the map, or ahead of it.
            std::thread::sleep(PAUSE);
        }
    }
}

/// Is somebody else to be asked?
pub(super) fn is_elsewhere(result: &Result<CallReply, ClientError>) -> bool {
    match result {
        Ok(reply) => reply.head.first() == Some(&(RowStatus::Elsewhere as u8)),
        Err(ClientError::Op(OpError::Call { fault: CallFault::ServerDied, .. })) => true,
        Err(_) => false,
    }
}
