package csr

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/certificates/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// ServingApprover approves serving certificates that kubelets request for themselves, if
// they name nothing but the node: its name and the addresses in its status. Upstream leaves
// this to administrators, as a network may let a machine claim addresses of others; here the
// API server verifies kubelets, so that without such a certificate there are no logs.
type ServingApprover struct {
	cfg   controller.Config
	loop  *controller.Loop[controller.Key]
	csrs  listers.CertificateSigningRequestLister
	nodes corelisters.NodeLister
}

// NewServingApprover makes the controller.
func NewServingApprover(cfg controller.Config) (*ServingApprover, error) {
	csrs, nodes := cfg.Informers.Certificates().V1().CertificateSigningRequests(), cfg.Informers.Core().V1().Nodes()
	a := &ServingApprover{cfg: cfg, csrs: csrs.Lister(), nodes: nodes.Lister()}
	a.loop = controller.NewLoop("kubelet-serving-approving-controller", 1, cfg.Clock, cfg.Logger, a.reconcile)
	if err := controller.Watch(a.loop, csrs.Informer(), controller.Enqueue[*certificatesv1.CertificateSigningRequest](a.loop)); err != nil {
		return nil, err
	}
	// A kubelet may ask before its node has the addresses.
	return a, controller.Watch(a.loop, nodes.Informer(), controller.Handlers[*corev1.Node]{
		Added: a.again,
		Updated: func(old, n *corev1.Node) {
			if !slices.Equal(old.Status.Addresses, n.Status.Addresses) {
				a.again(n)
			}
		},
	})
}

// Run reconciles until ctx ends.
func (a *ServingApprover) Run(ctx context.Context) error { return a.loop.Run(ctx) }

func (a *ServingApprover) again(n *corev1.Node) {
	all, err := a.csrs.List(labels.Everything())
	if err != nil { // a lister of a cache does not fail
		return
	}
	for _, c := range all {
		if undecidedServing(c) && c.Spec.Username == nodePrefix+n.Name {
			a.loop.Add(controller.KeyOf(c))
		}
	}
}

func undecidedServing(c *certificatesv1.CertificateSigningRequest) bool {
	return c.Spec.SignerName == certificatesv1.KubeletServingSignerName && len(c.Status.Certificate) == 0 &&
		!is(c, certificatesv1.CertificateApproved) && !is(c, certificatesv1.CertificateDenied)
}

func (a *ServingApprover) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	c, err := a.csrs.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading CertificateSigningRequest: %w", err)
	}
	if !undecidedServing(c) {
		return 0, nil
	}
	request, err := parse(c.Spec.Request)
	if err != nil || checkKubeletServing(request, c.Spec.Usages) != nil || request.Subject.CommonName != c.Spec.Username || !slices.Contains(c.Spec.Groups, nodesGroup) {
		return 0, nil // for somebody else to judge
	}
	node, err := a.nodes.Get(strings.TrimPrefix(request.Subject.CommonName, nodePrefix))
	if apierrors.IsNotFound(err) {
		return 0, nil // it comes by again with its node
	}
	if err != nil {
		return 0, fmt.Errorf("reading node: %w", err)
	}
	if foreign := notOwn(request, node); foreign != "" {
		a.cfg.Logger.Warn("a kubelet requests a serving certificate for a name that its node does not have", "request", c.Name, "node", node.Name, "name", foreign)
		return 0, nil
	}
	next := c.DeepCopy()
	next.Status.Conditions = append(next.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved",
		Message: "Auto approving kubelet serving certificate: its names and addresses are the node's own.",
	})
	if _, err := a.cfg.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, next.Name, next, metav1.UpdateOptions{}); err != nil {
		return 0, fmt.Errorf("approving: %w", err)
	}
	return 0, nil
}

// notOwn is a name or address in the request that is not the node's; empty if there is none.
func notOwn(r *x509.CertificateRequest, n *corev1.Node) string {
	names, ips := []string{n.Name}, []net.IP{}
	for _, a := range n.Status.Addresses {
		if ip := net.ParseIP(a.Address); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, a.Address)
		}
	}
	for _, d := range r.DNSNames {
		if !slices.Contains(names, d) {
			return d
		}
	}
	for _, ip := range r.IPAddresses {
		if !slices.ContainsFunc(ips, ip.Equal) {
			return ip.String()
		}
	}
	return ""
}
