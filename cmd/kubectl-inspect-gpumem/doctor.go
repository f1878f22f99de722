package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/gpumem/gpumem/pkg/doctor"
	"github.com/gpumem/gpumem/pkg/printers"
)

// newDoctorCommand returns the subcommand that looks for what is wrong with the
// installation.
func newDoctorCommand(o *options) *cobra.Command {
	output, wait := "", false
	cmd := &cobra.Command{
		Use:   "doctor [--wait] [-o json]",
		Short: "Find what is wrong with gpumem in this cluster, and how to mend it",
		Long: `Find what is wrong with gpumem in this cluster, and how to mend it.

It looks at gpumem's own workloads, its admission policies and certificates, at what nodes offer, and at pods that ask for GPU
memory. It changes nothing. What you may not read is said, and not checked.

What is younger than a minute may be settling yet, and is not judged: a note among the findings names it. After an install, --wait
judges it too.

The exit code is 1 when there is an error among the findings. Warnings and notes alone leave it at 0.`,
		Example: "  kubectl inspect gpumem doctor --wait\n  kubectl inspect gpumem doctor -o json | jq -r '.[] | select(.severity==\"error\").object'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output is %q, want json or nothing", output)
			}
			if err := o.Complete(nil); err != nil {
				return err
			}
			return o.doctor(cmd.Context(), output, wait)
		},
	}
	o.sayNamespace(cmd, namespaceOfAll)
	cmd.Flags().StringVarP(&output, "output", "o", output, "Output format: json; text unless set")
	cmd.Flags().BoolVar(&wait, "wait", wait, "Wait until what is there is old enough to be judged: a minute at most")
	return cmd
}

func (o *options) doctor(ctx context.Context, output string, wait bool) error {
	state, err := o.readState(ctx)
	if err != nil {
		return err
	}
	if young, left := state.Young(); wait && len(young) > 0 {
		fmt.Fprintf(o.ErrOut, "Waiting %s, until what is there can be judged\n", duration.HumanDuration(left))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(left):
		}
		if state, err = o.readState(ctx); err != nil {
			return err
		}
	}
	found := doctor.Examine(state)
	if err := printFindings(o.Out, output, found); err != nil {
		return err
	}
	errors := 0
	for _, f := range found {
		if f.Severity == doctor.Error {
			errors++
		}
	}
	if errors > 0 {
		return fmt.Errorf("%d of %d findings are errors", errors, len(found))
	}
	return nil
}

func printFindings(out io.Writer, output string, found []doctor.Finding) error {
	if output == "json" {
		return printers.WriteJSON(out, append([]doctor.Finding{}, found...))
	}
	for _, f := range found {
		if _, err := fmt.Fprintf(out, "%-8s%s: %s\n        %s\n", f.Severity, printers.Clean(f.Object), printers.Clean(f.Wrong), printers.Clean(f.Mend)); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(found, func(f doctor.Finding) bool { return f.Severity != doctor.Note }) {
		return nil
	}
	verdict := "No problem found."
	if len(found) > 0 {
		verdict = "No problem found so far."
	}
	_, err := fmt.Fprintln(out, verdict)
	return err
}

// ofGPUMem selects what the chart has made.
const ofGPUMem = "app.kubernetes.io/part-of=gpumem"

// readState reads what the checks look at. What cannot be read is noted. The error
// says that no API server answers.
func (o *options) readState(ctx context.Context) (*doctor.State, error) {
	s := &doctor.State{Names: o.names, Now: time.Now(), ClientVersion: version, Unread: make(map[string]string)}
	read := func(kind string, err error) {
		if err != nil {
			s.Unread[kind] = oneLine(err)
		}
	}
	info, err := o.client.Discovery().ServerVersion()
	if err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return nil, fmt.Errorf("the API server does not answer: %w", err)
	}
	read("version", err)
	if err == nil {
		s.ServerVersion = info.GitVersion
	}
	read("nodes", list(ctx, metav1.ListOptions{}, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return o.client.CoreV1().Nodes().List(ctx, opts)
	}, func() { s.Nodes = nil }, func(obj runtime.Object) {
		if node, ok := obj.(*v1.Node); ok {
			s.Nodes = append(s.Nodes, *node)
		}
	}))
	read("pods", list(ctx, metav1.ListOptions{FieldSelector: notEnded}, func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return o.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, opts)
	}, func() { s.Pods = nil }, func(obj runtime.Object) {
		// A cluster may have very many, and few that matter here.
		if pod, ok := obj.(*v1.Pod); ok && doctor.Concerns(o.names, pod) {
			s.Pods = append(s.Pods, *pod)
		}
	}))
	opts := metav1.ListOptions{LabelSelector: ofGPUMem}
	deployments, err := o.client.AppsV1().Deployments(o.system).List(ctx, opts)
	read("deployments", err)
	if err == nil {
		s.Deployments = deployments.Items
	}
	daemonSets, err := o.client.AppsV1().DaemonSets(o.system).List(ctx, opts)
	read("daemonsets", err)
	if err == nil {
		s.DaemonSets = daemonSets.Items
	}
	configMaps, err := o.client.CoreV1().ConfigMaps(o.system).List(ctx, opts)
	read("configmaps", err)
	if err == nil {
		s.ConfigMaps = configMaps.Items
	}
	policies, err := o.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, opts)
	read("validatingadmissionpolicies", err)
	if err == nil {
		s.Policies = policies.Items
	}
	bindings, err := o.client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().List(ctx, opts)
	read("validatingadmissionpolicybindings", err)
	if err == nil {
		s.Bindings = bindings.Items
	}
	s.Secrets, err = o.readSecrets(ctx, s)
	read("secrets", err)
	s.Decided, err = o.allDecided(ctx)
	read("decisions of gpumem's extender", err)
	return s, nil
}

// readSecrets reads those that an extender serves with, by name: there is no
// need to see any other, nor any where nobody serves by TLS.
func (o *options) readSecrets(ctx context.Context, s *doctor.State) (secrets []v1.Secret, err error) {
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
			secret, err := o.client.CoreV1().Secrets(d.Namespace).Get(ctx, name, metav1.GetOptions{})
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
