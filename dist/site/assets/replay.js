// Plays a terminal session (asciicast v2, plain output without control sequences) into its element.
document.querySelectorAll('.replay').forEach(async (element) => {
  const screen = document.createElement('pre');
  const button = document.createElement('button');
  element.append(screen, button);
  const response = await fetch(element.dataset.session);
  const events = (await response.text()).trim().split('\n').slice(1).map((line) => JSON.parse(line));
  const whole = events.map(([, , text]) => text).join('').replaceAll('\r', '');
  let timers = [];

  function stop() {
    timers.forEach(clearTimeout);
    timers = [];
    screen.textContent = whole;
    button.textContent = 'Play';
  }

  function play() {
    screen.textContent = '';
    button.textContent = 'Show all';
    timers = events.map(([seconds, , text]) =>
      setTimeout(() => { screen.textContent += text.replaceAll('\r', ''); }, seconds * 1000));
    timers.push(setTimeout(stop, (events.at(-1)[0] + 1) * 1000));
  }

  button.addEventListener('click', () => (timers.length > 0 ? stop() : play()));
  stop();
});
