// What npm's amqplib must be able to do with the broker named by the first argument (an amqp:// URL).
//
// Each scenario runs on a connection of its own, one after the other, and is a promise by its name. One line of
// JSON per scenario goes to standard output: {"name": ..., "error": null or text}. tests/interop/test_amqplib.py
// turns the lines into tests.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import amqp from 'amqplib';

const url = process.argv[2];
const DEADLINE_MS = 15_000;

// A consumer whose messages can be awaited one by one.
class Inbox {
  constructor() {
    this.messages = [];
    this.waiting = [];
  }

  put(message) {
    const next = this.waiting.shift();
    if (next) next(message);
    else this.messages.push(message);
  }

  take() {
    if (this.messages.length) return Promise.resolve(this.messages.shift());
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  static async open(channel, queue, options = {}) {
    const inbox = new Inbox();
    const { consumerTag } = await channel.consume(queue, (message) => inbox.put(message), options);
    inbox.tag = consumerTag;
    return inbox;
  }
}

async function temporary(channel, options = {}) {
  return (await channel.assertQueue('', { exclusive: true, ...options })).queue;
}

const scenarios = {
  async 'a message goes round with its properties'(connection) {
    const channel = await connection.createChannel();
    const queue = await temporary(channel);
    const inbox = await Inbox.open(channel, queue);
    channel.sendToQueue(queue, Buffer.from('grüße'), {
      contentType: 'text/plain', correlationId: 'c', messageId: 'm', type: 't', appId: 'a', priority: 2,
      timestamp: 1700000000, headers: { n: 1, deep: { list: [1, 'two', true, null] } },
    });
    const message = await inbox.take();
    assert.equal(message.content.toString(), 'grüße');
    assert.equal(message.properties.correlationId, 'c');
    assert.equal(message.properties.timestamp, 1700000000);
    assert.deepEqual(message.properties.headers, { n: 1, deep: { list: [1, 'two', true, null] } });
    assert.equal(message.fields.redelivered, false);
    channel.ack(message);
  },

  async 'confirms are awaited and numbered past many publishes'(connection) {
    const channel = await connection.createConfirmChannel();
    const queue = await temporary(channel);
    for (let number = 0; number < 500; number += 1) channel.sendToQueue(queue, Buffer.from(String(number)));
    await channel.waitForConfirms();
    assert.equal((await channel.checkQueue(queue)).messageCount, 500);
    assert.equal((await channel.purgeQueue(queue)).messageCount, 500);
  },

  async 'a refused publish is nacked'(connection) {
    const channel = await connection.createConfirmChannel();
    const queue = await temporary(channel, { arguments: { 'x-max-length': 0, 'x-overflow': 'reject-publish' } });
    const refused = await new Promise((resolve) => channel.sendToQueue(queue, Buffer.from('m'), {}, resolve));
    assert.notEqual(refused, null);
  },

  async 'an unroutable mandatory message is returned before its confirm'(connection) {
    const channel = await connection.createConfirmChannel();
    const order = [];
    channel.on('return', (message) => order.push(`return ${message.fields.routingKey}`));
    await new Promise((resolve) =>
      channel.publish('amq.direct', 'nowhere', Buffer.from('m'), { mandatory: true }, () => {
        order.push('confirm');
        resolve();
      }),
    );
    assert.deepEqual(order, ['return nowhere', 'confirm']);
  },

  async 'topic routing and exchange bindings work'(connection) {
    const channel = await connection.createConfirmChannel();
    await channel.assertExchange('amqplib-first', 'topic', { durable: false });
    await channel.assertExchange('amqplib-second', 'fanout', { durable: false });
    await channel.bindExchange('amqplib-second', 'amqplib-first', 'a.#');
    const queue = await temporary(channel);
    await channel.bindQueue(queue, 'amqplib-second', '');
    channel.publish('amqplib-first', 'a.b', Buffer.from('yes'));
    channel.publish('amqplib-first', 'b.a', Buffer.from('no'));
    await channel.waitForConfirms();
    assert.equal((await channel.get(queue, { noAck: true })).content.toString(), 'yes');
    assert.equal(await channel.get(queue, { noAck: true }), false);
    await channel.deleteExchange('amqplib-first');
    await channel.deleteExchange('amqplib-second');
  },

  async 'headers exchanges match tables'(connection) {
    const channel = await connection.createConfirmChannel();
    const queue = await temporary(channel);
    await channel.bindQueue(queue, 'amq.headers', '', { 'x-match': 'any', shape: 'round', size: 3 });
    channel.publish('amq.headers', '', Buffer.from('yes'), { headers: { size: 3 } });
    channel.publish('amq.headers', '', Buffer.from('no'), { headers: { size: 4 } });
    await channel.waitForConfirms();
    assert.equal((await channel.checkQueue(queue)).messageCount, 1);
  },

  async 'prefetch holds messages back until they are acknowledged'(connection) {
    const channel = await connection.createConfirmChannel();
    const queue = await temporary(channel);
    for (const text of ['1', '2', '3']) channel.sendToQueue(queue, Buffer.from(text));
    await channel.waitForConfirms();
    await channel.prefetch(1);
    const inbox = await Inbox.open(channel, queue);
    const first = await inbox.take();
    assert.equal((await channel.checkQueue(queue)).messageCount, 2);
    channel.ack(first);
    const second = await inbox.take();
    assert.equal(second.content.toString(), '2');
    channel.nack(second);
    const again = await inbox.take();
    assert.equal(again.content.toString(), '2');
    assert.equal(again.fields.redelivered, true);
    channel.ackAll();
  },

  async 'rejected messages are dead-lettered with their history'(connection) {
    const channel = await connection.createConfirmChannel();
    const dead = await temporary(channel);
    const queue = await temporary(channel, { deadLetterExchange: '', deadLetterRoutingKey: dead });
    const letters = await Inbox.open(channel, dead, { noAck: true });
    channel.sendToQueue(queue, Buffer.from('m'));
    await channel.waitForConfirms();
    channel.reject(await channel.get(queue), false);
    const letter = await letters.take();
    assert.equal(letter.properties.headers['x-death'][0].reason, 'rejected');
    assert.equal(letter.properties.headers['x-death'][0].count, 1);
  },

  async 'direct reply-to answers a request'(connection) {
    const channel = await connection.createChannel();
    const server = await connection.createChannel();
    const queue = await temporary(server);
    await server.consume(
      queue,
      (message) => server.sendToQueue(message.properties.replyTo, Buffer.from('pong'), {
        correlationId: message.properties.correlationId,
      }),
      { noAck: true },
    );
    const replies = await Inbox.open(channel, 'amq.rabbitmq.reply-to', { noAck: true });
    channel.sendToQueue(queue, Buffer.from('ping'), { replyTo: 'amq.rabbitmq.reply-to', correlationId: '7' });
    const reply = await replies.take();
    assert.equal(reply.content.toString(), 'pong');
    assert.equal(reply.properties.correlationId, '7');
  },

  async 'a large body crosses frames both ways'(connection) {
    const channel = await connection.createConfirmChannel();
    const queue = await temporary(channel);
    const inbox = await Inbox.open(channel, queue, { noAck: true });
    const body = Buffer.alloc(700_001, 'abc');
    channel.sendToQueue(queue, body);
    assert.equal((await inbox.take()).content.equals(body), true);
  },

  async 'a channel error names its cause and leaves the connection alone'(connection) {
    const channel = await connection.createChannel();
    channel.on('error', () => {});
    await assert.rejects(channel.checkQueue('amqplib-missing'), /404.*NOT_FOUND - no queue 'amqplib-missing'/s);
    const again = await connection.createChannel();
    await temporary(again);
  },

  async 'a deleted queue cancels its consumer'(connection) {
    const channel = await connection.createChannel();
    const queue = await temporary(channel);
    const inbox = await Inbox.open(channel, queue);
    await channel.deleteQueue(queue);
    assert.equal(await inbox.take(), null);
  },

  async 'a second connection takes over what the first left unacknowledged'(connection) {
    const holder = await amqp.connect(url);
    const channel = await connection.createConfirmChannel();
    const { queue } = await channel.assertQueue('amqplib-shared', { durable: false });
    channel.sendToQueue(queue, Buffer.from('m'));
    await channel.waitForConfirms();
    const held = await (await holder.createChannel()).get(queue);
    assert.equal(held.content.toString(), 'm');
    const inbox = await Inbox.open(channel, queue, { noAck: true });
    holder.connection.stream.destroy();
    holder.on('error', () => {});
    const message = await inbox.take();
    assert.equal(message.fields.redelivered, true);
    await channel.deleteQueue(queue);
  },

  async 'a wrong password is told'() {
    const wrong = new URL(url);
    wrong.password = 'wrong';
    await assert.rejects(amqp.connect(wrong.href), /ACCESS_REFUSED|403/);
  },

  async 'closing in order is answered'(connection) {
    const channel = await connection.createChannel();
    await channel.close();
    const closed = once(connection, 'close');
    await connection.close();
    await closed;
  },
};

function deadline(name) {
  return new Promise((_, reject) => {
    setTimeout(() => reject(new Error(`${name}: not within ${DEADLINE_MS} ms`)), DEADLINE_MS).unref();
  });
}

async function run(name) {
  const connection = await amqp.connect(`${url}?heartbeat=30`);
  connection.on('error', () => {});
  try {
    await Promise.race([scenarios[name](connection), deadline(name)]);
  } finally {
    await connection.close().catch(() => {});
  }
}

if (url === '--list') {
  for (const name of Object.keys(scenarios)) console.log(name);
} else {
  for (const name of Object.keys(scenarios)) {
    const error = await run(name).then(() => null, (caught) => String(caught.stack || caught));
    console.log(JSON.stringify({ name, error }));
  }
  process.exit(0);
}
