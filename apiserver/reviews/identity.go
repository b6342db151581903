package reviews

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/skiff-k8s/skiff/apiserver/seams"
)

func userInfo(u user.Info) authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	if extra := u.GetExtra(); len(extra) > 0 {
		info.Extra = make(map[string]authenticationv1.ExtraValue, len(extra))
		for k, v := range extra {
			info.Extra[k] = v
		}
	}
	return info
}

// token says whose a token is.
func (r *reviewer) token(ctx context.Context, req *seams.CreateRequest) (runtime.Object, error) {
	review := req.Object.(*authenticationv1.TokenReview)
	audiences := authenticator.Audiences(review.Spec.Audiences)
	if len(audiences) == 0 {
		audiences = r.Audiences
	}
	if len(audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	resp, ok, err := r.Tokens.AuthenticateToken(ctx, review.Spec.Token)
	review.Status = authenticationv1.TokenReviewStatus{Authenticated: ok}
	if err != nil {
		// Upstream has two authenticators of ServiceAccount tokens; the one for those of old
		// knows nothing of this one.
		review.Status.Error = "[invalid bearer token, " + err.Error() + "]"
	} else if !ok {
		review.Status.Error = "invalid bearer token"
	}
	if !ok {
		return review, nil
	}
	if len(resp.Audiences) == 0 {
		// Tokens without audience are for the API server.
		resp.Audiences = audiences.Intersect(r.Audiences)
	}
	if len(audiences) > 0 && len(audiences.Intersect(resp.Audiences)) == 0 {
		review.Status = authenticationv1.TokenReviewStatus{Error: "invalid bearer token"}
		return review, nil
	}
	review.Status.User = userInfo(resp.User)
	review.Status.Audiences = resp.Audiences
	return review, nil
}

// self says who asks.
func (r *reviewer) self(_ context.Context, req *seams.CreateRequest) (runtime.Object, error) {
	return &authenticationv1.SelfSubjectReview{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(r.Clock.Now()).Rfc3339Copy()},
		Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: userInfo(req.User)},
	}, nil
}
