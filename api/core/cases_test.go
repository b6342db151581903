package core

import (
	"testing"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func TestValidation(t *testing.T) { apitest.CheckCases(t, Resources()) }
