//! Speaking to the API server as a ServiceAccount, with a token of it.

use anyhow::{Context as _, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use kube::config::AuthInfo;
use kube::{Client, Config};

/// A ServiceAccount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub namespace: String,
    pub name: String,
}

impl Account {
    /// The operator's.
    pub fn operator() -> Self {
        Self { namespace: crate::operator::NAMESPACE.into(), name: crate::operator::DEPLOYMENT.into() }
    }

    /// A client with this account's rights and no other.
    ///
    /// # Errors
    /// If the API server gives no token.
    pub async fn client(&self, administrator: &Client) -> Result<Client> {
        let token = token(administrator, self).await?;
        let mut config = Config::infer().await?;
        config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
        Ok(Client::try_from(config)?)
    }
}

/// A token that holds for an hour.
pub(crate) async fn token(administrator: &Client, account: &Account) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(administrator.clone(), &account.namespace);
    let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let granted = accounts.create_token_request(&account.name, &PostParams::default(), &request).await?;
    Ok(granted.status.context("no token was given")?.token)
}
