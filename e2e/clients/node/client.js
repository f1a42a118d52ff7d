// npm's amqplib, with its promises.
'use strict';

const amqp = require('amqplib');

const scene = JSON.parse(process.env.UNDERSTUDY_SCENE);
const patience = scene.patience_seconds * 1000;
const backupFirst = [scene.backup, ...scene.addresses.filter((address) => address !== scene.backup)];
const numbers = (count) => Array.from({ length: count }, (_, number) => number);
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function expect(condition, otherwise) {
  if (!condition) throw new Error(otherwise);
}

function same(came, expected, otherwise) {
  expect(JSON.stringify(came) === JSON.stringify(expected), `${otherwise} ${JSON.stringify(came)}`);
}

async function until(condition, otherwise, deadline = Date.now() + patience) {
  while (!condition()) {
    expect(Date.now() < deadline, otherwise());
    await pause(5);
  }
}

async function connect(addresses, deadline = Date.now() + patience) {
  for (;;) {
    for (const address of addresses) {
      try {
        const connection = await amqp.connect(`amqp://guest:guest@${address}`, { timeout: 5000 });
        connection.on('error', () => {}); // Each loss is seen at 'close' or by the call that met it.
        return connection;
      } catch (error) {
        if (Date.now() > deadline) throw error;
      }
    }
    await pause(100);
  }
}

async function confirming(connection, queue) {
  const channel = await connection.createConfirmChannel();
  channel.on('error', () => {});
  await channel.assertQueue(queue, { durable: true });
  return channel;
}

function confirmed(channel, exchange, key, body, options = {}) {
  return new Promise((resolve, reject) => {
    const settle = (error) => (error ? reject(error) : resolve());
    channel.publish(exchange, key, Buffer.from(String(body)), { persistent: true, mandatory: true, ...options }, settle);
  });
}

async function roundTrip() {
  const connection = await connect(scene.addresses);
  const channel = await confirming(connection, 'clients.amqplib.round');
  const returned = [];
  channel.on('return', (message) => returned.push(message.fields.replyCode));
  await channel.assertExchange('clients.amqplib', 'direct', { durable: true });
  await channel.bindQueue('clients.amqplib.round', 'clients.amqplib', 'round');
  await Promise.all(
    numbers(scene.round).map((number) =>
      confirmed(channel, 'clients.amqplib', 'round', number, { headers: { number, odd: number % 2 === 1 } })
    )
  );
  await confirmed(channel, 'clients.amqplib', 'nowhere', 'lost');
  same(returned, [312], 'returned were');

  await channel.prefetch(10);
  const came = [];
  const wrong = [];
  const { consumerTag } = await channel.consume('clients.amqplib.round', (message) => {
    const number = Number(message.content.toString());
    const { headers } = message.properties;
    if (headers.number !== number || headers.odd !== (number % 2 === 1)) wrong.push(headers);
    came.push(number);
    channel.ack(message);
  });
  await until(() => came.length >= scene.round, () => `only ${came.length} of ${scene.round} came`);
  await channel.cancel(consumerTag);
  same(came, numbers(scene.round), 'came as');
  same(wrong, [], 'headers');
  const { messageCount } = await channel.checkQueue('clients.amqplib.round');
  expect(messageCount === 0, `${messageCount} messages left after the acks`);

  const { queue: replyTo } = await channel.assertQueue('', { exclusive: true, autoDelete: true });
  const answer = 'answer'.padEnd(scene.reply_bytes, '.');
  await confirmed(channel, '', replyTo, answer, { correlationId: '7' });
  const reply = await channel.get(replyTo, { noAck: true });
  expect(reply && reply.content.toString() === answer && reply.properties.correlationId === '7', 'no reply');
  await connection.close();
  return `${scene.round} confirmed, consumed and acked`;
}

async function relay() {
  const connection = await connect([scene.backup]);
  const channel = await confirming(connection, 'clients.amqplib.relay');
  await confirmed(channel, '', 'clients.amqplib.relay', 'through');
  const message = await channel.get('clients.amqplib.relay');
  expect(message && message.content.toString() === 'through', 'nothing came through');
  channel.ack(message);
  await channel.deleteQueue('clients.amqplib.relay');
  await connection.close();
  return `through ${scene.backup}`;
}

async function leave() {
  const connection = await connect(scene.addresses);
  const channel = await confirming(connection, 'clients.amqplib.left');
  for (const number of numbers(scene.left)) await confirmed(channel, '', 'clients.amqplib.left', number);
  await connection.close();
  return `${scene.left} confirmed, not consumed`;
}

// Publishes and consumes on two connections until both were lost and went on.
async function live() {
  const queue = 'clients.amqplib.live';
  const deadline = Date.now() + patience;
  const accepted = new Set();
  const received = new Set();
  const doubled = [];
  const lost = { publisher: 0, consumer: 0 };
  const sinceLoss = { publisher: 0, consumer: 0 };
  let next = 0;
  let stopping = false;
  let saidLive = false;

  const count = (side) => {
    sinceLoss[side] += 1;
    if (!saidLive && Math.min(accepted.size, received.size) >= scene.resume) {
      saidLive = true;
      say({ live: true });
    }
  };
  const lose = (side) => {
    lost[side] += 1;
    sinceLoss[side] = 0;
  };
  const missing = () => [...accepted].filter((number) => !received.has(number));
  // Both sides were lost and went on: enough was published.
  const resumed = () =>
    lost.publisher && lost.consumer && Math.min(sinceLoss.publisher, sinceLoss.consumer) >= scene.resume;
  const done = () => resumed() && !missing().length;

  async function publishOn() {
    while (!resumed()) {
      const connection = await connect(scene.addresses, deadline);
      const closed = new Promise((_, reject) => connection.on('close', () => reject(new Error('closed'))));
      closed.catch(() => {});
      try {
        const channel = await Promise.race([confirming(connection, queue), closed]);
        while (!resumed()) {
          const number = next++; // A number is used once: what was not confirmed is not sent again.
          await Promise.race([confirmed(channel, '', queue, number), closed]);
          accepted.add(number);
          count('publisher');
          await pause(10);
        }
        await connection.close();
      } catch {
        lose('publisher');
      }
    }
  }

  async function consumeOn() {
    while (!stopping) {
      const connection = await connect(backupFirst, deadline);
      const closed = new Promise((resolve) => connection.on('close', resolve));
      try {
        const channel = await Promise.race([confirming(connection, queue), closed.then(() => Promise.reject())]);
        await channel.prefetch(10);
        await channel.consume(queue, (message) => {
          if (message === null) return;
          const number = Number(message.content.toString());
          channel.ack(message);
          if (!received.has(number)) {
            received.add(number);
            count('consumer');
          } else if (!message.fields.redelivered) {
            doubled.push(number);
          }
        });
        await closed;
      } catch {
        // The loss is counted below, whichever way it came.
      }
      lose('consumer');
    }
  }

  const broken = Promise.all([publishOn(), consumeOn()]);
  const state = () => `lost ${JSON.stringify(lost)}, since then ${JSON.stringify(sinceLoss)}, missing ${missing()}`;
  await Promise.race([until(done, state, deadline), broken]);
  stopping = true;
  same(doubled, [], 'delivered twice without the redelivered flag:');
  return `${accepted.size} confirmed, ${received.size} received`;
}

async function kept() {
  const connection = await connect(scene.addresses);
  const channel = await confirming(connection, 'clients.amqplib.left');
  const came = [];
  for (let message = await channel.get('clients.amqplib.left'); message; message = await channel.get('clients.amqplib.left')) {
    came.push(Number(message.content.toString()));
    channel.ack(message);
  }
  await connection.close();
  same(came, numbers(scene.left), `of ${scene.left} left before the failover there came`);
  return `${came.length} of ${scene.left}, each once`;
}

async function main() {
  const steps = { round: roundTrip, relay, leave, resume: live, kept, 'round again': roundTrip };
  for (const [step, play] of Object.entries(steps)) {
    try {
      say({ step, ok: true, detail: await play() });
    } catch (error) {
      console.error(error);
      say({ step, ok: false, detail: String(error) });
      process.exitCode = 1;
      break;
    }
  }
  // The live connections may still be open; the scene has seen enough of them.
  process.exit();
}

main();
