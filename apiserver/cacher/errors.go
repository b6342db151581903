package cacher

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/store"
)

// ErrNoChange is what change returns, wrapped or bare, to leave the object as it is.
var ErrNoChange = errors.New("no change")

func internalError(err error) error { return apierrors.NewInternalError(err) }

// storeReadError is upstream's answer for an object that is stored but not readable.
func storeReadError(err error) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: err.Error(),
	}}
}

// statusOf turns an error of the store or of a context into a StatusError.
func statusOf(err error) error {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case errors.As(err, &status):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, store.ErrUncertain):
		return apierrors.NewTimeoutError(fmt.Sprintf("request did not complete within requested timeout - %v", err), 0)
	case errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError(fmt.Sprintf("request was cancelled - %v", err), 0)
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrClosed):
		return retryable(apierrors.NewServiceUnavailable(err.Error()))
	case errors.Is(err, store.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	case errors.Is(err, store.ErrCompacted):
		return expiredList()
	}
	return internalError(err)
}

func retryable(err *apierrors.StatusError) error {
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// notReady is a cache that is still being filled.
func notReady(r *resource) error {
	return apierrors.NewTooManyRequests(
		fmt.Sprintf("storage of %s is (re)initializing", r.api.GR()), 1)
}

// tooLarge says that the cache has not reached the revision that was asked for.
func tooLarge(wanted, current int64) error {
	err := apierrors.NewTimeoutError(
		fmt.Sprintf("Too large resource version: %d, current: %d", wanted, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type:    metav1.CauseTypeResourceVersionTooLarge,
		Message: "Too large resource version",
	}}
	return err
}

func tooOld(wanted, oldest int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", wanted, oldest))
}

func expiredList() error {
	return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
}

// expiredContinue offers to go on with the newest state where the list was.
func expiredContinue(inconsistent string) error {
	err := apierrors.NewResourceExpired("The provided continue parameter is too old " +
		"to display a consistent list result. You can start a new list without " +
		"the continue parameter, or use the continue token in this response to " +
		"retrieve the remainder of the results. Continuing with the provided " +
		"token results in an inconsistent list - objects that were created, " +
		"modified, or deleted between the time the first chunk was returned " +
		"and now may show up in the list.")
	err.ErrStatus.ListMeta.Continue = inconsistent
	return err
}

func slowWatcher(r *resource) error {
	return apierrors.NewResourceExpired(
		fmt.Sprintf("the watch on %s was too slow: events it has not read are gone", r.api.GR()))
}
