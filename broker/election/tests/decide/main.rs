//! The decision, case by case: a cluster of three in which something has happened, and what its elector then does, as text.
//! Identities are shortened to `name/store/process`; a restarted process counts one up, a new store starts with `9`.

mod by_a_person;
mod candidates;
mod case;
mod forced_by_name;
mod identities;
mod replaced_by_a_backup;
mod replaced_by_either;
mod replaced_by_the_operator;
mod the_lease_itself;
mod versions;
mod without_a_lease;
