package volumes

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trustBundle writes the certificates of one ClusterTrustBundle, or of all of a
// signer that the selector picks (KEP-3257).
func (m *Manager) trustBundle(ctx context.Context, files map[string]File, p *corev1.ClusterTrustBundleProjection, perm os.FileMode) error {
	if m.cfg.Client == nil {
		return fmt.Errorf("a kubelet without API server cannot read ClusterTrustBundles")
	}
	api := m.cfg.Client.CertificatesV1().ClusterTrustBundles()
	var pems []string
	switch {
	case p.Name != nil:
		b, err := api.Get(ctx, *p.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && isTrue(p.Optional) {
			break
		}
		if err != nil {
			return fmt.Errorf("read ClusterTrustBundle %s: %w", *p.Name, err)
		}
		pems = append(pems, b.Spec.TrustBundle)
	case p.SignerName != nil:
		if p.LabelSelector == nil {
			break // no selector selects nothing
		}
		sel, err := metav1.LabelSelectorAsSelector(p.LabelSelector)
		if err != nil {
			return fmt.Errorf("labelSelector of clusterTrustBundle: %w", err)
		}
		list, err := api.List(ctx, metav1.ListOptions{LabelSelector: sel.String(), FieldSelector: "spec.signerName=" + *p.SignerName})
		if err != nil {
			return fmt.Errorf("list ClusterTrustBundles of signer %s: %w", *p.SignerName, err)
		}
		for i := range list.Items {
			if list.Items[i].Spec.SignerName == *p.SignerName {
				pems = append(pems, list.Items[i].Spec.TrustBundle)
			}
		}
		if len(pems) == 0 && !isTrue(p.Optional) {
			return fmt.Errorf("no ClusterTrustBundle of signer %s matches", *p.SignerName)
		}
	}
	files[p.Path] = File{Data: []byte(uniqueCertificates(pems)), Mode: perm}
	return nil
}

// uniqueCertificates joins bundles without repeating certificates, in stable order.
func uniqueCertificates(pems []string) string {
	const end = "-----END CERTIFICATE-----"
	seen := map[string]bool{}
	var out []string
	for _, p := range pems {
		for _, c := range strings.SplitAfter(p, end) {
			if c = strings.TrimSpace(c); strings.HasSuffix(c, end) && !seen[c] {
				seen[c] = true
				out = append(out, c+"\n")
			}
		}
	}
	sort.Strings(out)
	return strings.Join(out, "")
}
