//! What a group of fixed ranks promises when its ranks are processes that are killed, stopped, late or not alone.

mod deaths;
mod farewell;
mod meeting;
mod remains;
mod restoring;
mod script;
mod stage;
mod strangers;

/// Not a promise of its own: the other tests run this one in processes of its own, which then are ranks.
#[test]
fn a_rank_does_as_it_is_told() {
    if std::env::var_os(stage::IS_RANK).is_some() {
        script::play();
    }
}
