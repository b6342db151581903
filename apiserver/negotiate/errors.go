package negotiate

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NotAcceptable is the 406 answer.
func NotAcceptable(accepted []string) error {
	return status(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		fmt.Sprintf("only the following media types are accepted: %s", strings.Join(accepted, ", ")))
}

// NotAcceptableText is a 406 with a message of its own.
func NotAcceptableText(message string) error {
	return status(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, message)
}

// UnsupportedMediaType is the 415 answer.
func UnsupportedMediaType(accepted []string) error {
	return status(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: %s", strings.Join(accepted, ", ")))
}

func status(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	}}
}
