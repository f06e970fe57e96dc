// Package event is the event plane in Dynamo's formats: who publishes a topic says so in discovery, and who subscribes follows all of them. Messages
// go by ZeroMQ, where each publisher binds a PUB socket of its own, or by whatever a plane.Link has besides.
//
// A Publisher sends the messages of one topic. Subscribe follows all publishers of a topic, as they come and go: for load and replica sync, where a
// lost message is only lost. A RankStream follows the one publisher of a rank's KV events, numbers them for a feed (package core/feed), and asks
// for those that were lost.
package event
