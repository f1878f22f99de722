package cluster

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// waitDefaultServiceAccount waits until pods can be made: each one has the
// default service account unless it names another.
func (c *Cluster) waitDefaultServiceAccount(ctx context.Context) error {
	return c.poll(ctx, "the default service account is there", func(ctx context.Context) error {
		_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	}, "apiserver", "controller-manager")
}
