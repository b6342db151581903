package cluster

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// parseEndpoint reads what --control-plane-endpoint says: a host, with a port unless it is the
// API server's.
func parseEndpoint(s string, apiPort uint16) (string, error) {
	bad := func(why string) error {
		return fmt.Errorf("--control-plane-endpoint=%s %s; give HOST or HOST:PORT of what leads to the API servers, such as k8s.example.com:6443", s, why)
	}
	host, port := s, strconv.Itoa(int(apiPort))
	if h, p, err := net.SplitHostPort(s); err == nil {
		host, port = h, p
	}
	host = strings.Trim(host, "[]")
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", bad("has no port from 1 to 65535")
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if a.IsUnspecified() || a.IsLoopback() {
			return "", bad("is no address that other machines can reach")
		}
	} else if errs := validation.IsDNS1123Subdomain(host); len(errs) > 0 {
		return "", bad("is neither a host name nor an address")
	}
	return net.JoinHostPort(host, port), nil
}

// endpointNames is the endpoint's host as certificates have it.
func (c *Config) endpointNames() []string {
	host, _, err := net.SplitHostPort(c.ControlPlaneEndpoint)
	if err != nil {
		return nil // there is none
	}
	return []string{host}
}

// kubeconfigServer is what the kubeconfig says: with several API servers whichever answers.
func (c *Config) kubeconfigServer() string {
	if c.ControlPlaneEndpoint != "" {
		return c.PublicServer()
	}
	return c.Server()
}

// controlPlaneLabels are the first node's labels. Where there may be several control planes
// their nodes are marked as kubeadm marks them.
func (c *Config) controlPlaneLabels() map[string]string {
	if c.ControlPlaneEndpoint == "" {
		return c.Labels
	}
	out := map[string]string{"node-role.kubernetes.io/control-plane": ""}
	maps.Copy(out, c.Labels)
	return out
}

// lookAround tells what is not as it should be between control planes, although this one works.
func (r *Running) lookAround(ctx context.Context) error {
	c := r.Config
	if c.ControlPlaneEndpoint == "" {
		return nil
	}
	ca, err := os.ReadFile(r.Paths.PKI() + "/ca.crt")
	if err != nil {
		return fmt.Errorf("read the cluster's CA: %w", err)
	}
	try, cancel := context.WithTimeout(ctx, endpointPatience)
	defer cancel()
	if _, err := fetchInfo(try, c.PublicServer(), ca); err != nil {
		fmt.Fprintf(r.opts.Progress, "  warning: the control-plane endpoint %s does not lead here yet, and other machines need it: %s\n", c.ControlPlaneEndpoint, strings.TrimPrefix(err.Error(), errNotYet.Error()+": "))
	}
	if !c.severalMembers() {
		return nil
	}
	admin, err := EtcdAdmin(c, r.Paths)
	if err != nil {
		return err
	}
	defer admin.Close()
	members, err := admin.Members(ctx)
	if err != nil {
		return err
	}
	if line := evenMembers(len(members)); line != "" {
		fmt.Fprintln(r.opts.Progress, line)
	}
	return nil
}

// preferEndpoint makes a node reach the API servers by what stands in front of them, if that
// leads to them from here, whichever one the node joined at.
func (n *NodeConfig) preferEndpoint(ctx context.Context, endpoint string, ca []byte) {
	if server := "https://" + endpoint; endpoint != "" && server != n.Server {
		try, cancel := context.WithTimeout(ctx, endpointPatience)
		defer cancel()
		if _, err := fetchInfo(try, server, ca); err == nil {
			n.Server = server
		}
	}
}

// endpointPatience is short: nothing waits for the endpoint here.
const endpointPatience = 3 * time.Second

// evenMembers says what an even number of members is worth.
func evenMembers(n int) string {
	if n%2 != 0 {
		return ""
	}
	return fmt.Sprintf("  warning: %d control planes bear the loss of %d, as %d would: join one more", n, (n-1)/2, n-1)
}
