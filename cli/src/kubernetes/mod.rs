//! The way to a cluster in Kubernetes: a client as kubectl would have it, the namespace, and the BrokerCluster that is meant.
//! What is read is read leniently ([`Seen`]): a newer or older operator may write more or less of it.

mod seen;

use anyhow::{Context, bail};
use kube::api::{Api, DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind, NamespaceResourceScope};
use kube::{Client, Config, Resource};

use crate::arguments::ReachOptions;
pub(crate) use seen::Seen;

pub(crate) const GROUP: &str = "understudy.dev";
pub(crate) const VERSION: &str = "v1alpha1";
pub(crate) const KIND: &str = "BrokerCluster";
const PLURAL: &str = "brokerclusters";

/// More than anybody has in one namespace; a list is only read to name what there is.
const MAX_LISTED: u32 = 50;

/// A client, and the namespace that is meant.
#[derive(Clone)]
pub(crate) struct Kubernetes {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Kubernetes {
    /// # Errors
    /// If no kubeconfig names an API server, or the context is unknown.
    pub(crate) async fn reach(options: &ReachOptions) -> anyhow::Result<Self> {
        let ReachOptions { namespace, context, kubeconfig } = options;
        let wanted = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
        let config = match kubeconfig {
            Some(path) => {
                let read = Kubeconfig::read_from(path)
                    .with_context(|| format!("the kubeconfig {} cannot be read", path.display()))?;
                Config::from_custom_kubeconfig(read, &wanted).await?
            }
            None if context.is_some() => Config::from_kubeconfig(&wanted).await?,
            None => Config::infer().await.context("no way to a Kubernetes API server: is a kubeconfig there?")?,
        };
        let namespace = namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        Ok(Self { client: Client::try_from(config)?, namespace })
    }

    pub(crate) fn clusters(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource())
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The BrokerCluster of that name, or without a name the only one of the namespace.
    ///
    /// # Errors
    /// If there is none, or several to choose from, or the API server does not tell.
    pub(crate) async fn cluster(&self, name: Option<&str>) -> anyhow::Result<Seen> {
        let namespace = &self.namespace;
        let Some(name) = name else {
            let few = ListParams::default().limit(MAX_LISTED);
            let listed = self.clusters().list(&few).await;
            let listed = listed.with_context(|| format!("the {KIND}s of namespace {namespace} cannot be listed"))?;
            let names = || {
                let names: Vec<_> = listed.items.iter().filter_map(|object| object.metadata.name.clone()).collect();
                names.join(", ")
            };
            return match listed.items.as_slice() {
                [] => bail!("there is no {KIND} in namespace {namespace}: give another with --namespace"),
                [only] => Ok(Seen::of(only.clone())),
                _ => bail!("there are several {KIND}s in namespace {namespace}: say which of {}", names()),
            };
        };
        let found = self.clusters().get_opt(name).await;
        let found = found.with_context(|| format!("{KIND} {namespace}/{name} cannot be read"))?;
        found.map(Seen::of).with_context(|| format!("there is no {KIND} {name} in namespace {namespace}"))
    }
}

pub(crate) fn resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, KIND), PLURAL)
}

#[cfg(test)]
mod tests {
    use crate::fake_api::{FakeApi, cluster_path};

    #[tokio::test]
    async fn a_name_may_be_left_out_where_there_is_only_one() {
        let api = FakeApi::default();
        let kubernetes = api.kubernetes();
        let error = async |name| kubernetes.cluster(name).await.err().map(|error| format!("{error:#}")).unwrap();
        assert!(error(None).await.contains("no BrokerCluster in namespace shop"));
        api.put(&cluster_path("orders"), crate::fake_api::cluster("orders"));
        assert_eq!(kubernetes.cluster(None).await.unwrap().name(), "orders");
        assert_eq!(kubernetes.cluster(Some("orders")).await.unwrap().name(), "orders");
        assert!(error(Some("other")).await.contains("no BrokerCluster other in namespace shop"));
        api.put(&cluster_path("payments"), crate::fake_api::cluster("payments"));
        assert!(error(None).await.contains("say which of orders, payments"));
    }
}
