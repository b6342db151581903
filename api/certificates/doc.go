// Package certificates declares the resources of certificates.k8s.io.
//
// Owns: certificatesigningrequests, podcertificaterequests and clustertrustbundles as
// objects. Must not: approve or sign, nor decide who may: that is the controllers' and the
// API server's.
package certificates

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/api"
)

var groupVersion = certificatesv1.SchemeGroupVersion

// Resources lists what the group serves.
func Resources() []*api.Resource {
	return []*api.Resource{
		certificateSigningRequests(metav1.Now),
		clusterTrustBundles(),
		podCertificateRequests(metav1.Now),
	}
}
