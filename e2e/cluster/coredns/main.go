// Command coredns is CoreDNS with the few plugins that cluster DNS needs: service and pod names
// from the API server, a short cache, and the readiness probe. It forwards nowhere: the test cluster has
// no way out.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// The order in which a query passes the plugins; the list that CoreDNS itself has names plugins
	// that are not linked in here.
	dnsserver.Directives = []string{"errors", "ready", "cache", "kubernetes"}
	coremain.Run()
}
