//! Every driver against the one list of what drivers promise (`conformance`): shared memory, both kinds of sockets, and
//! RDMA devices where there is one (`tests/guest`; ignored elsewhere).

mod conformance;

use conformance::over;

macro_rules! over_all {
    ($($checks:tt)*) => {
        over!(over_shm, crate::conformance::rig::Shm; $($checks)*);
        over!(over_tcp, crate::conformance::rig::Tcp; $($checks)*);
        over!(over_unix, crate::conformance::rig::Unix; $($checks)*);
        over!(#[ignore = "needs an RDMA device: tests/guest/run.sh"] over_verbs_lane, crate::conformance::rig::VerbsLane; $($checks)*);
    };
}

over_all! {
    data::{
        writes_of_all_sizes_land_before_their_notice,
        many_spans_become_one_stretch,
        thousands_of_writes_keep_their_order_over_full_queues,
        a_notice_needs_no_bytes_and_no_key,
        only_signalled_writes_complete_in_their_order,
        reads_of_all_sizes_bring_the_bytes_both_ways,
        several_reads_are_under_way_at_once_and_complete_in_their_order,
        a_read_sees_what_was_written_before_it,
        a_region_exposed_late_can_be_used_as_soon_as_it_is_granted,
        stretches_of_a_region_far_larger_than_memory_are_lent,
        what_is_sent_before_the_peer_has_the_channel_waits_for_it,
        channels_of_several_queues_are_told_apart_and_work_at_once,
    }
    bounds::{
        the_last_byte_of_a_grant_is_the_last,
        a_key_that_was_never_exposed_reaches_nothing,
        a_key_of_another_channel_reaches_nothing,
        a_grant_ends_with_the_life_that_gave_it,
        an_offer_that_was_used_or_withdrawn_connects_nobody,
    }
    flow::{
        completions_not_taken_keep_their_places,
        who_sleeps_over_a_full_queue_is_woken_when_there_is_room,
        one_poll_brings_no_more_than_it_may,
        ping_and_pong_that_both_sleep_lose_no_wake,
        an_idle_wait_costs_no_processor_time,
        a_wait_ends_with_its_time,
    }
    life::{
        nothing_lands_after_a_close_and_the_peer_hears_it,
        a_closed_channel_is_closed_and_its_queue_goes_on,
        what_was_sent_before_the_end_is_delivered_before_it,
        a_dropped_queue_ends_all_its_channels,
        memory_is_given_back_with_the_queues_that_knew_it,
        a_region_lives_as_long_as_it_is_exposed,
    }
    regions::{
        hundreds_of_regions_are_granted_and_told_apart,
        a_region_costs_what_is_touched_of_it,
    }
    deaths::{
        nothing_of_a_writer_killed_in_its_middle_lands_once_its_channel_has_ended,
        a_peer_killed_while_idle_is_noticed_asleep_and_awake,
        a_write_towards_a_killed_peer_ends_with_its_channel,
    }
    misuse::{
        impossible_depths_offers_and_indices_are_refused,
        a_channel_goes_to_the_queue_it_was_connected_for,
        a_peer_that_does_not_come_is_waited_for_until_the_deadline,
    }
}

// What is other than with immediates: how notices come, and that they keep their order with the bytes.
over!(#[ignore = "needs an RDMA device: tests/guest/run.sh"] over_verbs_flags, crate::conformance::rig::VerbsFlags;
    data::{
        writes_of_all_sizes_land_before_their_notice,
        thousands_of_writes_keep_their_order_over_full_queues,
        a_notice_needs_no_bytes_and_no_key,
        only_signalled_writes_complete_in_their_order,
        what_is_sent_before_the_peer_has_the_channel_waits_for_it,
    }
    flow::{ who_sleeps_over_a_full_queue_is_woken_when_there_is_room }
    life::{ nothing_lands_after_a_close_and_the_peer_hears_it }
);
