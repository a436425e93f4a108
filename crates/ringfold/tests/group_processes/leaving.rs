//! Ranks that leave a group.

use super::rank_process::{MEDIA, Rank, await_waiting, group};
use std::time::Duration;

#[test]
fn data_sent_before_leaving_is_received_afterwards() {
    for media in MEDIA {
        // One element, a whole slot, and all eager slots.
        for count in [1, 16_384, 4 * 16_384] {
            let mut ranks = group(3, media, "chunk_bytes=65536");
            let mut leaver = ranks.pop().unwrap();
            leaver.ask(format!("send 0 {count}")).ok();
            leaver.ask("send 1 7").ok();
            leaver.exit();
            // The others notice it without a call. A call that waits for it would fail the group.
            std::thread::sleep(Duration::from_millis(300));
            ranks[0].ask(format!("recv 2 {count}")).ok();
            ranks[1].ask("recv 2 7").ok();
            // The other ranks can still transfer.
            ranks[0].send_command("send 1 1000");
            ranks[1].ask("recv 0 1000").ok();
            ranks[0].answer().ok();
            let error = ranks[0].ask("recv 2 1").error();
            assert!(error.contains("rank 2 (") && error.contains("left"), "{error}");
            ranks.into_iter().for_each(Rank::exit);
        }
    }
}

#[test]
fn unread_data_at_leaving_does_not_lose_data_already_sent() {
    for media in MEDIA {
        let mut ranks = group(2, media, "");
        let mut leaver = ranks.pop().unwrap();
        // It leaves with unread data.
        ranks[0].ask("send 1 30000").ok();
        leaver.ask("send 0 30000").ok();
        leaver.exit();
        // The other one notices it without a call.
        std::thread::sleep(Duration::from_millis(300));
        ranks[0].ask("recv 1 30000").ok();
        ranks.into_iter().for_each(Rank::exit);
    }
}

#[test]
fn a_rank_that_leaves_while_others_wait_for_it_is_named() {
    for media in MEDIA {
        let mut ranks = group(3, media, "");
        ranks[0].send_command("reduce 1");
        ranks[1].send_command("recv 2 1");
        await_waiting(&mut ranks[..2]);
        ranks.pop().unwrap().exit();
        for rank in &mut ranks {
            let error = rank.answer().error();
            assert!(error.contains("rank 2 (") && error.contains("left"), "{error}");
        }
        ranks.into_iter().for_each(Rank::exit);
    }
}
