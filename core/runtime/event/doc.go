// Package event is the event plane over ZeroMQ, in Dynamo's formats: who publishes a topic binds a PUB socket of its own and says so in discovery;
// who subscribes connects to all of them.
//
// A Publisher sends the messages of one topic. Subscribe follows all publishers of a topic, as they come and go: for load and replica sync, where a
// lost message is only lost. A RankStream follows the one publisher of a rank's KV events, numbers them for a feed (package core/feed), and asks
// for those that were lost.
package event
