package cluster

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// waitDefaultServiceAccount waits until pods can be made in a namespace: each one has the
// default service account unless it names another.
func (c *Cluster) waitDefaultServiceAccount(ctx context.Context, namespace string) error {
	return c.poll(ctx, "namespace "+namespace+" has its service account", func(ctx context.Context) error {
		_, err := c.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	}, "apiserver", "controller-manager")
}

// MakeNamespace makes a namespace, in which pods can be made when it returns. A name that ends with a
// hyphen is the beginning of its name.
func (c *Cluster) MakeNamespace(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	of := metav1.ObjectMeta{Name: name}
	if strings.HasSuffix(name, "-") {
		of = metav1.ObjectMeta{GenerateName: name}
	}
	made, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: of}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return made.Name, c.waitDefaultServiceAccount(ctx, made.Name)
}
