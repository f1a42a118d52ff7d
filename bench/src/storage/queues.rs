//! Many queues at once: declared, and their messages counted, with many requests on their way at a time.

use std::time::Duration;

use understudy_protocol::{Method, queue};

use crate::link::{Link, LinkError};
use crate::target::{QueuePlan, Target};

/// Ten thousand durable queues on a slow disk are declared within it.
const LIMIT: Duration = Duration::from_secs(600);

/// Durable queues of one name and a number.
pub(super) fn numbered(name: &str, count: usize) -> Vec<QueuePlan> {
    (0..count).map(|number| QueuePlan::durable(format!("{name}-{number}"))).collect()
}

/// At the first address that answers.
pub(super) async fn declare(target: &Target, queues: &[QueuePlan]) -> Result<(), LinkError> {
    let declaring = async {
        let mut link = open(target).await?;
        let methods = queues.iter().map(QueuePlan::declare).collect::<Option<Vec<_>>>().ok_or(LinkError::QueueName)?;
        link.request_all(methods.into_iter().map(Method::from), queue::DeclareOk::ID, drop).await?;
        link.close().await;
        Ok(())
    };
    tokio::time::timeout(LIMIT, declaring).await.unwrap_or(Err(LinkError::TimedOut(LIMIT)))
}

/// Messages that are ready in all of them; an error if one is not there.
pub(super) async fn count(target: &Target, queues: &[QueuePlan]) -> Result<u64, LinkError> {
    let counting = async {
        let mut link = open(target).await?;
        let mut messages = 0;
        let methods = queues.iter().map(passive).collect::<Option<Vec<_>>>().ok_or(LinkError::QueueName)?;
        link.request_all(methods, queue::DeclareOk::ID, |answer| {
            if let Method::QueueDeclareOk(answer) = answer {
                messages += u64::from(answer.message_count);
            }
        })
        .await?;
        link.close().await;
        Ok(messages)
    };
    tokio::time::timeout(LIMIT, counting).await.unwrap_or(Err(LinkError::TimedOut(LIMIT)))
}

/// Asks whether a queue is there, and makes none.
pub(super) fn passive(plan: &QueuePlan) -> Option<Method> {
    Some(queue::Declare { queue: plan.short_name()?, passive: true, ..queue::Declare::default() }.into())
}

/// A connection to the first address that takes one.
pub(super) async fn open(target: &Target) -> Result<Link, LinkError> {
    let mut failure = LinkError::NoAddress;
    for address in &target.addresses {
        match tokio::time::timeout(target.attempt_limit, Link::connect(target, address)).await {
            Ok(Ok(link)) => return Ok(link),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = LinkError::TimedOut(target.attempt_limit),
        }
    }
    Err(failure)
}
