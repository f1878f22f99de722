package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/report/doctor"
)

// State reads the objects for doctor's checks, and records the kinds that it cannot list. If the user may
// not list the pods of all namespaces, it lists the pods of parameter namespace. It returns an error only if
// no API server answers.
func (r *Reader) State(ctx context.Context, now time.Time, clientVersion, namespace string) (*doctor.State, error) {
	s := &doctor.State{Names: r.Names, Now: now, ClientVersion: clientVersion, Unread: make(map[string]string)}
	read := func(kind string, err error) {
		if err != nil {
			s.Unread[kind] = OneLine(err)
		}
	}
	info, err := r.Client.Discovery().ServerVersion()
	if err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return nil, fmt.Errorf("the API server does not answer: %w", err)
	}
	read("version", err)
	if err == nil {
		s.ServerVersion = info.GitVersion
	}
	read("nodes", r.eachNode(ctx, "", func() { s.Nodes = nil }, func(node *v1.Node) { s.Nodes = append(s.Nodes, *node) }))
	pods := func(namespace string) error {
		return r.eachPod(ctx, namespace, notSucceededSelector, func() { s.Pods, s.ControlPlane = nil, nil }, func(pod *v1.Pod) {
			// Store only the pods that checks read: a cluster may have many others.
			if doctor.IsRelevantPod(r.Names, pod) {
				s.Pods = append(s.Pods, *pod)
			}
			if doctor.IsControlPlanePod(pod) {
				s.ControlPlane = append(s.ControlPlane, *pod)
			}
		})
	}
	err = pods(metav1.NamespaceAll)
	if apierrors.IsForbidden(err) && namespace != "" && pods(namespace) == nil {
		s.Namespace, err = namespace, nil
	}
	read("pods", err)
	slices, err := r.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if !apierrors.IsNotFound(err) { // Kubernetes before 1.34 has no ResourceSlices
		read("resourceslices", err)
	}
	if err == nil {
		s.Slices = slices.Items
	}
	r.readInstallation(ctx, s, read)
	s.Secrets, err = r.readSecrets(ctx, s)
	read("secrets", err)
	return s, nil
}

// readInstallation lists the objects of the chart.
func (r *Reader) readInstallation(ctx context.Context, s *doctor.State, read func(kind string, err error)) {
	opts := metav1.ListOptions{LabelSelector: gpumemSelector}
	deployments, err := r.Client.AppsV1().Deployments(r.System).List(ctx, opts)
	read("deployments", err)
	if err == nil {
		s.Deployments = deployments.Items
	}
	daemonSets, err := r.Client.AppsV1().DaemonSets(r.System).List(ctx, opts)
	read("daemonsets", err)
	if err == nil {
		s.DaemonSets = daemonSets.Items
	}
	configMaps, err := r.Client.CoreV1().ConfigMaps(r.System).List(ctx, opts)
	read("configmaps", err)
	if err == nil {
		s.ConfigMaps = configMaps.Items
	}
	policies, err := r.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, opts)
	read("validatingadmissionpolicies", err)
	if err == nil {
		s.Policies = policies.Items
	}
	bindings, err := r.Client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().List(ctx, opts)
	read("validatingadmissionpolicybindings", err)
	if err == nil {
		s.Bindings = bindings.Items
	}
}

// readSecrets gets the Secrets with the certificates of a gpumem-extender that serves the cluster's own
// kube-scheduler. It gets them by name, so users need no right to list Secrets.
func (r *Reader) readSecrets(ctx context.Context, s *doctor.State) (secrets []v1.Secret, err error) {
	for _, d := range s.Deployments {
		if d.Labels["app.kubernetes.io/component"] != "extender" {
			continue
		}
		names := []string{d.Name + "-client"}
		for _, volume := range d.Spec.Template.Spec.Volumes {
			if volume.Secret != nil && !slices.Contains(names, volume.Secret.SecretName) {
				names = append(names, volume.Secret.SecretName)
			}
		}
		for _, name := range names {
			secret, err := r.Client.CoreV1().Secrets(d.Namespace).Get(ctx, name, metav1.GetOptions{})
			switch {
			case err == nil:
				secrets = append(secrets, *secret)
			case !apierrors.IsNotFound(err):
				return secrets, err
			}
		}
	}
	return secrets, nil
}
