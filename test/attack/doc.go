// Package attack tries on a real cluster what somebody could who may edit one namespace, runs
// pods there or has taken a node, and knows the chart. docs/security.md says what stops each.
//
// # Decisions
//
// An attack counts as blocked by what came of it: the words of a refusal, or what the victim
// and the accounts have afterwards. Where a refusal could come of a broken harness, the same
// request without harm goes first, by the same account and on the same way, and has to
// succeed; if it does not, the attack counts as broken.
//
// The attackers have tokens of service accounts with the role edit, as tenants have, and use
// kubectl, client-go and pods. What an administrator does is done to make the scene.
//
// The attacks leave the cluster as it was, so that tests with a cluster of their own kind run
// them too. Those that need another installation are made for gpumem-attack alone (Config.Own).
package attack
